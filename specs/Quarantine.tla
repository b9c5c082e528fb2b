------------------------------ MODULE Quarantine ------------------------------
(* Strict mode: a server whose data may be older than what it has granted waits for one lease before it grants anything.

   What it stands for: the quarantine after a restart or failover, as designed for one Redis server and its replicas in
   src/leasehold/stores/redis; the same rule on one node of Redlock is in scripts/redlock_claim.lua there (see Redlock). This
   is the design: a store that has it must do these steps, in one script each.

   Design. The data hold a mark: the identity (run id) of the server that granted last. A claim that finds another mark,
   or none, has come to a server that was started, emptied or promoted: it writes the server's own identity, and until
   when grants are refused (now + Rest, Rest being the longest lease that anybody may ask for), and grants nothing. Leases that are in the data may
   be renewed and left meanwhile, by their tickets; and a claim that is repeated by such a ticket is answered, which is
   safe only since no ticket asks again once it has left: old data may still have it as the holder. Any other claim is
   refused during the quarantine, with the time that is left.

   The condition (TLC finds it to be exact, in ticks): the last write that a primary accepts after it was cut off is not
   later than the promotion, that is Fences <= After + 1.

   Modelled. A primary and a replica, which copies the data from time to time. The primary is cut off, at any time: it
   goes on accepting for Fences ticks (min-replicas-max-lag, and as long as it reaches no replica); the replica is promoted
   After ticks after the cut at the earliest (down-after and the election). Clients ask and renew at either side. A server
   may also restart, with the data of an earlier copy or with none. Each ticket renews where it was granted or at
   the other server, wherever its lease is known.

   Left out: who tells clients where to go, clocks that differ by more than a tick (add that to Rest), tokens (they are not below the
   clock, see Lease), the quorum of replicas that strict mode asks for as well: it makes a loss rarer, and nothing here needs it. *)
EXTENDS Naturals

CONSTANTS
    Tickets, None,
    Lease, MaxTime,
    Rest,           \* ticks of quarantine. Lease; 0 switches it off
    Fences,         \* ticks for which a primary that is cut off goes on accepting
    After,          \* ticks from the cut to the promotion, at least
    Restarts        \* how often a server restarts

VARIABLES
    now,
    holder, ends, mark, until,      \* the data of each server: ticket, end of its lease, identity, end of the quarantine
    self,                           \* the identity of each server
    cut, promoted,                  \* when the primary was cut off; whether the replica serves
    pc, sent, answered,             \* of each ticket: "new", "asks", "holds", "left"; when it sent what is under way; whether it was done
    deadline,
    restarts

data == <<holder, ends, mark, until>>
ticket == <<pc, sent, answered, deadline>>
vars == <<now, data, self, cut, promoted, ticket, restarts>>

Servers == {"primary", "replica"}
Never == MaxTime + 1

Init ==
    /\ now = 0 /\ holder = [s \in Servers |-> None] /\ ends = [s \in Servers |-> 0]
    /\ mark = [s \in Servers |-> 1] /\ until = [s \in Servers |-> 0]     \* both have the mark of the primary, who is 1
    /\ self = [s \in Servers |-> IF s = "primary" THEN 1 ELSE 2] /\ cut = Never /\ promoted = FALSE
    /\ pc = [t \in Tickets |-> "new"] /\ sent = [t \in Tickets |-> 0] /\ answered = [t \in Tickets |-> FALSE]
    /\ deadline = [t \in Tickets |-> 0] /\ restarts = 0

Accepts(s) == IF s = "primary" THEN cut = Never \/ now < cut + Fences ELSE promoted
Held(s) == holder[s] # None /\ now < ends[s]
Valid(t) == pc[t] = "holds" /\ now < deadline[t]

Tick ==             \* what has ended is taken off at once: fewer states
    /\ now < MaxTime /\ now' = now + 1
    /\ holder' = [s \in Servers |-> IF ends[s] <= now + 1 THEN None ELSE holder[s]]
    /\ ends' = [s \in Servers |-> IF ends[s] <= now + 1 THEN 0 ELSE ends[s]]
    /\ until' = [s \in Servers |-> IF until[s] <= now + 1 THEN 0 ELSE until[s]]
    /\ UNCHANGED <<mark, self, cut, promoted, ticket, restarts>>

(* --- servers ------------------------------------------------------------------------------------------------------- *)

Copied(from, to, field) == [field EXCEPT ![to] = field[from]]

Copy ==             \* all data, with mark and quarantine
    /\ cut = Never
    /\ holder' = Copied("primary", "replica", holder) /\ ends' = Copied("primary", "replica", ends)
    /\ mark' = Copied("primary", "replica", mark) /\ until' = Copied("primary", "replica", until)
    /\ UNCHANGED <<now, self, cut, promoted, ticket, restarts>>

CutOff == cut = Never /\ cut' = now /\ UNCHANGED <<now, data, self, promoted, ticket, restarts>>

Promote == cut # Never /\ ~promoted /\ now >= cut + After /\ promoted' = TRUE /\ UNCHANGED <<now, data, self, cut, ticket, restarts>>

Restart ==          \* a new identity; with nothing, or with what was saved or copied last
    /\ restarts < Restarts /\ cut = Never /\ restarts' = restarts + 1
    /\ self' = [self EXCEPT !["primary"] = 3 + restarts]
    /\ \/ /\ holder' = [holder EXCEPT !["primary"] = None] /\ ends' = [ends EXCEPT !["primary"] = 0]
          /\ mark' = [mark EXCEPT !["primary"] = 0] /\ until' = [until EXCEPT !["primary"] = 0]
       \/ /\ holder' = Copied("replica", "primary", holder) /\ ends' = Copied("replica", "primary", ends)
          /\ mark' = Copied("replica", "primary", mark) /\ until' = Copied("replica", "primary", until)
    /\ UNCHANGED <<now, cut, promoted, ticket>>

Suspect(s) ==       \* a claim finds another mark than the server's identity, and grants nothing
    /\ Accepts(s) /\ mark[s] # self[s] /\ (\E t \in Tickets : pc[t] = "asks")
    /\ mark' = [mark EXCEPT ![s] = self[s]] /\ until' = [until EXCEPT ![s] = now + Rest]
    /\ UNCHANGED <<now, holder, ends, self, cut, promoted, ticket, restarts>>

Grant(t, s) ==      \* for the first time, or the same claim again
    /\ pc[t] = "asks" /\ Accepts(s) /\ mark[s] = self[s]
    /\ IF Held(s) THEN holder[s] = t ELSE now >= until[s]
    /\ holder' = [holder EXCEPT ![s] = t] /\ ends' = [ends EXCEPT ![s] = now + Lease] /\ answered' = [answered EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<now, mark, until, self, cut, promoted, pc, sent, deadline, restarts>>

Renew(t, s) ==      \* also during the quarantine, also where the mark is another's
    /\ pc[t] = "holds" /\ sent[t] # Never /\ Accepts(s) /\ Held(s) /\ holder[s] = t
    /\ ends' = [ends EXCEPT ![s] = now + Lease] /\ answered' = [answered EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<now, holder, mark, until, self, cut, promoted, pc, sent, deadline, restarts>>

(* --- tickets ------------------------------------------------------------------------------------------------------- *)

Send(t) ==
    /\ pc[t] \in {"new", "asks"} \/ Valid(t)
    /\ pc' = [pc EXCEPT ![t] = IF @ = "new" THEN "asks" ELSE @]
    /\ sent' = [sent EXCEPT ![t] = now] /\ answered' = [answered EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, data, self, cut, promoted, deadline, restarts>>

Hear(t) ==
    /\ answered[t] /\ now < sent[t] + Lease /\ (pc[t] = "holds" => Valid(t))
    /\ pc' = [pc EXCEPT ![t] = "holds"] /\ deadline' = [deadline EXCEPT ![t] = sent[t] + Lease]
    /\ sent' = [sent EXCEPT ![t] = Never] /\ answered' = [answered EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, data, self, cut, promoted, restarts>>

Leave(t, s) ==      \* it believes no longer; the leave reaches one server, or none (then its lease ends by itself)
    /\ pc[t] = "holds"
    /\ IF holder[s] = t /\ Accepts(s)
       THEN holder' = [holder EXCEPT ![s] = None] /\ ends' = [ends EXCEPT ![s] = 0] ELSE UNCHANGED <<holder, ends>>
    /\ pc' = [pc EXCEPT ![t] = "left"] /\ sent' = [sent EXCEPT ![t] = 0] /\ answered' = [answered EXCEPT ![t] = FALSE]
    /\ deadline' = [deadline EXCEPT ![t] = 0] /\ UNCHANGED <<now, mark, until, self, cut, promoted, restarts>>

Next ==
    \/ Tick \/ Copy \/ CutOff \/ Promote \/ Restart
    \/ \E s \in Servers : Suspect(s)
    \/ \E t \in Tickets : Send(t) \/ Hear(t)
    \/ \E t \in Tickets, s \in Servers : Grant(t, s) \/ Renew(t, s) \/ Leave(t, s)

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

TimedExclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u       \* S1, across a failover and a restart
==============================================================================

------------------------------ MODULE Quarantine ------------------------------
(* Strict mode: a server whose data may be older than its grants waits for one lease before it grants anything.

   It models the quarantine after a restart or failover, as designed for one Redis server and its replicas: see
   src/leasehold/stores/redis/strict/ and scripts/strict.lua. A node of Redlock keeps a stricter rule in
   scripts/redlock_claim.lua: its tickets give votes back and ask again, so it grants no claim at all (see Redlock).
   This is the design: a store with strict mode must carry out each of these steps in one script.

   Design:
   - The data contain a marker: the identity (run id) of the server that granted last.
   - A claim that finds another marker, or none, has reached a server that was started, emptied or promoted. It writes the
     server's own identity, and the time until which claims are refused: now + QuarantineTime, the longest lease that any
     client may ask for. It grants nothing.
   - Meanwhile leases that are in the data may be renewed and released by their tickets. A repeated claim of such a ticket is
     granted. That is safe only since no ticket sends a claim after its release: old data may still name it as the holder.
   - Any other claim is refused during the quarantine. The reply has the time that is left.

   The condition (TLC shows that it is exact, in ticks): a primary that was cut off accepts its last write no later than the
   promotion, that is AcceptFor <= PromoteAfter + 1.

   Modelled:
   - A primary, and a replica that copies the data from time to time.
   - The primary may be cut off at any time. It then accepts writes for AcceptFor ticks (min-replicas-max-lag and up to 2 s, and
     as long as it reaches no replica). The replica is promoted PromoteAfter ticks after the cut at the earliest (down-after
     and the election).
   - Clients send claims and renewals to either server. A ticket renews at any server that knows its lease.
   - A server may also restart, with the data of an earlier copy or with none.

   Left out: how clients find the primary, clocks that differ by more than a tick (add that to QuarantineTime), tokens (they
   are at least the clock, see Lease), and the quorum of replicas that strict mode asks for as well: it makes a loss less
   likely, and nothing here needs it. *)
EXTENDS Naturals

CONSTANTS
    Tickets, None,
    Lease, MaxTime,
    QuarantineTime,  \* ticks: Lease. 0 switches the quarantine off
    AcceptFor,       \* ticks for which a primary that was cut off still accepts writes
    PromoteAfter,    \* the fewest ticks from the cut to the promotion
    Restarts         \* the number of restarts

VARIABLES
    now,
    \* the data of each server: holder, end of its lease, marker, end of the quarantine
    holder, ends, marker, refusesUntil,
    identity,                       \* the identity of each server
    cut, promoted,                  \* when the primary was cut off; whether the replica was promoted
    \* of each ticket: "new", "acquiring", "holds", "released"; when it sent its request; whether there is a reply
    pc, sent, replied,
    deadline,
    restarts

data == <<holder, ends, marker, refusesUntil>>
ticket == <<pc, sent, replied, deadline>>
vars == <<now, data, identity, cut, promoted, ticket, restarts>>

Servers == {"primary", "replica"}
Never == MaxTime + 1

Init ==
    /\ now = 0 /\ holder = [s \in Servers |-> None] /\ ends = [s \in Servers |-> 0]
    \* both have the marker of the primary, which is 1
    /\ marker = [s \in Servers |-> 1] /\ refusesUntil = [s \in Servers |-> 0]
    /\ identity = [s \in Servers |-> IF s = "primary" THEN 1 ELSE 2] /\ cut = Never /\ promoted = FALSE
    /\ pc = [t \in Tickets |-> "new"] /\ sent = [t \in Tickets |-> 0] /\ replied = [t \in Tickets |-> FALSE]
    /\ deadline = [t \in Tickets |-> 0] /\ restarts = 0

Accepts(s) == IF s = "primary" THEN cut = Never \/ now < cut + AcceptFor ELSE promoted
Held(s) == holder[s] # None /\ now < ends[s]
Valid(t) == pc[t] = "holds" /\ now < deadline[t]

Tick ==             \* what has expired is removed at once: fewer states
    /\ now < MaxTime /\ now' = now + 1
    /\ holder' = [s \in Servers |-> IF ends[s] <= now + 1 THEN None ELSE holder[s]]
    /\ ends' = [s \in Servers |-> IF ends[s] <= now + 1 THEN 0 ELSE ends[s]]
    /\ refusesUntil' = [s \in Servers |-> IF refusesUntil[s] <= now + 1 THEN 0 ELSE refusesUntil[s]]
    /\ UNCHANGED <<marker, identity, cut, promoted, ticket, restarts>>

(* --- servers ------------------------------------------------------------------------------------------------------- *)

Copied(from, to, field) == [field EXCEPT ![to] = field[from]]

Copy ==             \* all data, with marker and quarantine
    /\ cut = Never
    /\ holder' = Copied("primary", "replica", holder) /\ ends' = Copied("primary", "replica", ends)
    /\ marker' = Copied("primary", "replica", marker) /\ refusesUntil' = Copied("primary", "replica", refusesUntil)
    /\ UNCHANGED <<now, identity, cut, promoted, ticket, restarts>>

CutOff == cut = Never /\ cut' = now /\ UNCHANGED <<now, data, identity, promoted, ticket, restarts>>

Promote ==
    /\ cut # Never /\ ~promoted /\ now >= cut + PromoteAfter /\ promoted' = TRUE
    /\ UNCHANGED <<now, data, identity, cut, ticket, restarts>>

Restart ==          \* a new identity, with no data, or with the data of the last copy
    /\ restarts < Restarts /\ cut = Never /\ restarts' = restarts + 1
    /\ identity' = [identity EXCEPT !["primary"] = 3 + restarts]
    /\ \/ /\ holder' = [holder EXCEPT !["primary"] = None] /\ ends' = [ends EXCEPT !["primary"] = 0]
          /\ marker' = [marker EXCEPT !["primary"] = 0] /\ refusesUntil' = [refusesUntil EXCEPT !["primary"] = 0]
       \/ /\ holder' = Copied("replica", "primary", holder) /\ ends' = Copied("replica", "primary", ends)
          /\ marker' = Copied("replica", "primary", marker) /\ refusesUntil' = Copied("replica", "primary", refusesUntil)
    /\ UNCHANGED <<now, cut, promoted, ticket>>

StartQuarantine(s) ==  \* a claim finds a marker that is not the server's identity, and grants nothing
    /\ Accepts(s) /\ marker[s] # identity[s] /\ (\E t \in Tickets : pc[t] = "acquiring")
    /\ marker' = [marker EXCEPT ![s] = identity[s]] /\ refusesUntil' = [refusesUntil EXCEPT ![s] = now + QuarantineTime]
    /\ UNCHANGED <<now, holder, ends, identity, cut, promoted, ticket, restarts>>

Grant(t, s) ==      \* the first claim, or a repeated one
    /\ pc[t] = "acquiring" /\ Accepts(s) /\ marker[s] = identity[s]
    /\ IF Held(s) THEN holder[s] = t ELSE now >= refusesUntil[s]
    /\ holder' = [holder EXCEPT ![s] = t] /\ ends' = [ends EXCEPT ![s] = now + Lease] /\ replied' = [replied EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<now, marker, refusesUntil, identity, cut, promoted, pc, sent, deadline, restarts>>

Renew(t, s) ==      \* also during the quarantine, and where the marker is of another server
    /\ pc[t] = "holds" /\ sent[t] # Never /\ Accepts(s) /\ Held(s) /\ holder[s] = t
    /\ ends' = [ends EXCEPT ![s] = now + Lease] /\ replied' = [replied EXCEPT ![t] = TRUE]
    /\ UNCHANGED <<now, holder, marker, refusesUntil, identity, cut, promoted, pc, sent, deadline, restarts>>

(* --- tickets ------------------------------------------------------------------------------------------------------- *)

Send(t) ==
    /\ pc[t] \in {"new", "acquiring"} \/ Valid(t)
    /\ pc' = [pc EXCEPT ![t] = IF @ = "new" THEN "acquiring" ELSE @]
    /\ sent' = [sent EXCEPT ![t] = now] /\ replied' = [replied EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, data, identity, cut, promoted, deadline, restarts>>

ReadReply(t) ==
    /\ replied[t] /\ now < sent[t] + Lease /\ (pc[t] = "holds" => Valid(t))
    /\ pc' = [pc EXCEPT ![t] = "holds"] /\ deadline' = [deadline EXCEPT ![t] = sent[t] + Lease]
    /\ sent' = [sent EXCEPT ![t] = Never] /\ replied' = [replied EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, data, identity, cut, promoted, restarts>>

\* it no longer believes that it holds; the release reaches one server, or none (then the lease expires)
Release(t, s) ==
    /\ pc[t] = "holds"
    /\ IF holder[s] = t /\ Accepts(s)
       THEN holder' = [holder EXCEPT ![s] = None] /\ ends' = [ends EXCEPT ![s] = 0] ELSE UNCHANGED <<holder, ends>>
    /\ pc' = [pc EXCEPT ![t] = "released"] /\ sent' = [sent EXCEPT ![t] = 0] /\ replied' = [replied EXCEPT ![t] = FALSE]
    /\ deadline' = [deadline EXCEPT ![t] = 0]
    /\ UNCHANGED <<now, marker, refusesUntil, identity, cut, promoted, restarts>>

Next ==
    \/ Tick \/ Copy \/ CutOff \/ Promote \/ Restart
    \/ \E s \in Servers : StartQuarantine(s)
    \/ \E t \in Tickets : Send(t) \/ ReadReply(t)
    \/ \E t \in Tickets, s \in Servers : Grant(t, s) \/ Renew(t, s) \/ Release(t, s)

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

TimedExclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u  \* across a failover and a restart
==============================================================================

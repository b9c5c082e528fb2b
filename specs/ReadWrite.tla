------------------------------ MODULE ReadWrite ------------------------------
(* The read-write lock: many readers, or one writer, and one upgradeable reader among the readers, in order of arrival.

   It models src/leasehold/_rules.py (conflicts, decide, successors), the same rules in
   src/leasehold/stores/redis/scripts/shared_{common,claim,release}.lua, and src/leasehold/primitives/locks/rw_lock.py, which
   refuses what could wait for ever: the upgrade of a plain reader.

   Modelled:
   - Each client sends a claim for a role, waits, holds, releases, and starts again, for ever.
   - An upgradeable reader may claim the writer's role in addition to its own entry. A writer may claim the reader's, and
     then release the writer's (downgrade). Such a claim precedes all claims of clients that hold nothing.
   - A client may die. Then its leases end some time later, and the next waiters are granted.

   Left out: time (a lease ends some time after the death), tokens and messages (see Lease and Wakeup), reentrant acquires,
   which need no request, and entries of living clients that vanish (after an upgrade, a client looks for its own).
   Waits have no timeout here: that is the harder case.                                                                   *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Clients,
    Deaths,          \* how many clients may die
    Fair,            \* grants in order of arrival. FALSE: a claim without a conflict is granted, even if a writer waits
    PassUpgrade,     \* a bug: later readers overtake an upgrade that waits for readers
    ManyUpgradeable  \* a bug: two upgradeable readers may hold at once

VARIABLES
    holders,        \* set of entries <<client, role>>
    queue,          \* sequence of <<client, role, own>>; own is the role that the client already holds, or "none"
    pc,             \* of each client: "idle", "waits", "holds", "upgrades", "both"
    role,           \* the role that it claimed first
    dead

vars == <<holders, queue, pc, role, dead>>

Init ==
    /\ holders = {} /\ queue = <<>> /\ pc = [c \in Clients |-> "idle"] /\ role = [c \in Clients |-> "reader"]
    /\ dead = {}

Conflicts(entry, held) ==  \* as rules.conflicts; a client does not conflict with its own entry
    LET rest == held \ {<<entry[1], entry[3]>>} IN
    CASE entry[2] = "writer" -> rest # {}
      [] entry[2] = "reader" -> \E other \in rest : other[2] = "writer"
      [] OTHER -> \E other \in rest : other[2] = "writer" \/ (other[2] = "upgradeable" /\ ~ManyUpgradeable)

RECURSIVE Successors(_, _, _)
Successors(held, waiters, granted) ==  \* as rules.successors: the waiters that are granted, in this order
    IF waiters = <<>> THEN granted
    ELSE LET entry == Head(waiters) IN
         IF ~Conflicts(entry, held) THEN Successors(held \cup {<<entry[1], entry[2]>>}, Tail(waiters), granted \cup {entry})
         ELSE IF entry[2] = "upgradeable" \/ (entry[3] # "none" /\ PassUpgrade) THEN Successors(held, Tail(waiters), granted)
         \* also behind an upgrade that must wait: no reader is added, so those that hold will end
         ELSE granted

GrantNext(held, waiters) ==  \* grant all that may hold; claims of clients that already hold come first
    LET holds(entry) == <<entry[1], entry[3]>> \in held
        rest(entry) == ~holds(entry)
        granted == Successors(held, SelectSeq(waiters, holds) \o SelectSeq(waiters, rest), {})
        out(entry) == entry \notin granted IN
    /\ holders' = held \cup {<<entry[1], entry[2]>> : entry \in granted}
    /\ queue' = SelectSeq(waiters, out)

Update(c, state) ==  \* the new state of client C, then of those that were granted
    LET entered(d) == \E entry \in holders' \ holders : entry[1] = d
        old(d) == IF d = c THEN state ELSE pc[d] IN
    pc' = [d \in Clients |-> IF entered(d) THEN CASE old(d) = "waits" -> "holds" [] old(d) = "upgrades" -> "both" [] OTHER -> old(d)
                             ELSE old(d)]

Claim(c, entry, state) ==  \* a claim that joins the queue if it is not granted
    /\ IF Fair \/ Conflicts(entry, holders)
       THEN IF Fair THEN GrantNext(holders, Append(queue, entry)) ELSE queue' = Append(queue, entry) /\ UNCHANGED holders
       ELSE holders' = holders \cup {<<entry[1], entry[2]>>} /\ UNCHANGED queue
    /\ Update(c, state)

Begin(c) ==
    /\ pc[c] = "idle" /\ c \notin dead
    /\ \E r \in {"reader", "upgradeable", "writer"} : role' = [role EXCEPT ![c] = r] /\ Claim(c, <<c, r, "none">>, "waits")
    /\ UNCHANGED dead

Upgrade(c) ==
    /\ pc[c] = "holds" /\ role[c] = "upgradeable" /\ c \notin dead
    /\ Claim(c, <<c, "writer", "upgradeable">>, "upgrades") /\ UNCHANGED <<role, dead>>

Downgrade(c) ==     \* two requests: claim the reader's role, then release the writer's
    /\ pc[c] = "holds" /\ role[c] = "writer" /\ c \notin dead
    /\ \/ /\ <<c, "reader">> \notin holders /\ holders' = holders \cup {<<c, "reader">>}
          /\ UNCHANGED <<queue, pc, role, dead>>
       \/ /\ <<c, "reader">> \in holders /\ GrantNext(holders \ {<<c, "writer">>}, queue)
          /\ Update(c, "holds") /\ role' = [role EXCEPT ![c] = "reader"] /\ UNCHANGED dead

Release(c) ==       \* all that it has; from "both" the writer's role first, as the blocks end
    /\ c \notin dead
    /\ \/ pc[c] = "holds" /\ GrantNext({entry \in holders : entry[1] # c}, queue) /\ Update(c, "idle")
       \/ pc[c] = "both" /\ GrantNext(holders \ {<<c, "writer">>}, queue) /\ Update(c, "holds")
    /\ UNCHANGED <<role, dead>>

Die(c) ==
    /\ c \notin dead /\ pc[c] # "idle" /\ Cardinality(dead) < Deaths /\ dead' = dead \cup {c}
    /\ UNCHANGED <<holders, queue, pc, role>>

Expire(c) ==        \* its leases and queue entries end
    /\ c \in dead /\ pc[c] # "idle"
    /\ LET living(entry) == entry[1] # c IN GrantNext({entry \in holders : entry[1] # c}, SelectSeq(queue, living))
    /\ Update(c, "idle") /\ UNCHANGED <<role, dead>>

Next == \E c \in Clients : Begin(c) \/ Upgrade(c) \/ Downgrade(c) \/ Release(c) \/ Die(c) \/ Expire(c)

(* A holder releases at some time, however often it upgrades, and the leases of a dead client end. No client has to claim
   again, to upgrade, or to die. *)
Spec == Init /\ [][Next]_vars /\ \A c \in Clients :
    SF_vars(pc[c] = "holds" /\ Release(c)) /\ WF_vars(pc[c] = "both" /\ Release(c)) /\ WF_vars(Expire(c))

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

Exclusion == \A entry \in holders : entry[2] = "writer" => \A other \in holders : other[1] = entry[1]
OneUpgradeable == Cardinality({entry \in holders : entry[2] = "upgradeable"}) <= 1
Sound == \A c \in Clients : pc[c] \in {"holds", "both"} => \E entry \in holders : entry[1] = c
NobodyStarves == \A c \in Clients : pc[c] = "waits" ~> pc[c] # "waits"
UpgradeEnds == \A c \in Clients : pc[c] = "upgrades" ~> pc[c] # "upgrades"
==============================================================================

------------------------------ MODULE ReadWrite ------------------------------
(* The read-write lock: readers together, a writer alone, one upgradeable reader beside them, in order of arrival.

   What it stands for: src/leasehold/_rules.py (conflicts, decide, successors), the same in
   src/leasehold/stores/redis/scripts/shared_{common,claim,leave}.lua, and src/leasehold/primitives/locks/rw_lock.py, which refuses
   what could wait for ever: an upgrade of a plain reader.

   Modelled. Each client asks for a role, waits, holds, leaves, and begins anew, for ever. An upgradeable reader may ask to
   write beside its own seat; a writer may read beside its own and then leave the writing (downgrade). Who stands beside
   a seat of its own comes first. A client may die; then its leases end some time later, and the next come in.

   Left out: time (a lease ends some time after the death), tokens and messages (see Lease and Wakeup), re-entrance
   that needs no request. Waits have no timeout here: it is the harder case.                                             *)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS
    Clients,
    Deaths,             \* how many clients may die
    Fair,               \* in order of arrival. FALSE: who fits enters, also past a writer that waits
    PassUpgrade,        \* a bug: readers who come later pass an upgrade that waits for readers
    ManyUpgradeable     \* a bug: an upgradeable reader holds beside its like

VARIABLES
    holders,    \* set of seats <<client, role>>
    queue,      \* sequence of <<client, role, beside>>; beside is the role beside which it stands, or "none"
    pc,         \* of each client: "idle", "waits", "holds", "upgrades", "both"
    role,       \* what it asked for first
    dead

vars == <<holders, queue, pc, role, dead>>

Init == holders = {} /\ queue = <<>> /\ pc = [c \in Clients |-> "idle"] /\ role = [c \in Clients |-> "reader"] /\ dead = {}

Conflicts(seat, among) ==       \* as rules.conflicts; one is not in one's own way beside the seat that one names
    LET others == among \ {<<seat[1], seat[3]>>} IN
    CASE seat[2] = "writer" -> others # {}
      [] seat[2] = "reader" -> \E other \in others : other[2] = "writer"
      [] OTHER -> \E other \in others : other[2] = "writer" \/ (other[2] = "upgradeable" /\ ~ManyUpgradeable)

RECURSIVE Walk(_, _, _)
Walk(among, line, in) ==        \* as rules.successors: the seats of LINE that enter, in this order
    IF line = <<>> THEN in
    ELSE LET seat == Head(line) IN
         IF ~Conflicts(seat, among) THEN Walk(among \cup {<<seat[1], seat[2]>>}, Tail(line), in \cup {seat})
         ELSE IF seat[2] = "upgradeable" \/ (seat[3] # "none" /\ PassUpgrade) THEN Walk(among, Tail(line), in)
         ELSE in                \* also where an upgrade cannot enter: no more readers come, so those who hold go

LetIn(among, line) ==           \* all who may, those beside a seat of their own first; their clients hold
    LET inside(seat) == <<seat[1], seat[3]>> \in among
        others(seat) == ~inside(seat)
        in == Walk(among, SelectSeq(line, inside) \o SelectSeq(line, others), {})
        out(seat) == seat \notin in IN
    /\ holders' = among \cup {<<seat[1], seat[2]>> : seat \in in}
    /\ queue' = SelectSeq(line, out)

After(c, turn) ==               \* what is new of client C, then of those who were let in
    LET entered(d) == \E seat \in holders' \ holders : seat[1] = d
        old(d) == IF d = c THEN turn ELSE pc[d] IN
    pc' = [d \in Clients |-> IF entered(d) THEN CASE old(d) = "waits" -> "holds" [] old(d) = "upgrades" -> "both" [] OTHER -> old(d)
                             ELSE old(d)]

Ask(c, seat, turn) ==           \* a claim that joins
    /\ IF Fair \/ Conflicts(seat, holders)
       THEN IF Fair THEN LetIn(holders, Append(queue, seat)) ELSE queue' = Append(queue, seat) /\ UNCHANGED holders
       ELSE holders' = holders \cup {<<seat[1], seat[2]>>} /\ UNCHANGED queue
    /\ After(c, turn)

Begin(c) ==
    /\ pc[c] = "idle" /\ c \notin dead
    /\ \E r \in {"reader", "upgradeable", "writer"} : role' = [role EXCEPT ![c] = r] /\ Ask(c, <<c, r, "none">>, "waits")
    /\ UNCHANGED dead

Upgrade(c) ==
    /\ pc[c] = "holds" /\ role[c] = "upgradeable" /\ c \notin dead
    /\ Ask(c, <<c, "writer", "upgradeable">>, "upgrades") /\ UNCHANGED <<role, dead>>

Downgrade(c) ==                 \* two requests: read beside the writing, then leave the writing
    /\ pc[c] = "holds" /\ role[c] = "writer" /\ c \notin dead
    /\ \/ <<c, "reader">> \notin holders /\ holders' = holders \cup {<<c, "reader">>} /\ UNCHANGED <<queue, pc, role, dead>>
       \/ <<c, "reader">> \in holders /\ LetIn(holders \ {<<c, "writer">>}, queue)
          /\ After(c, "holds") /\ role' = [role EXCEPT ![c] = "reader"] /\ UNCHANGED dead

Leave(c) ==                     \* all that it has; from "both" the writing first, as the blocks end
    /\ c \notin dead
    /\ \/ pc[c] = "holds" /\ LetIn({seat \in holders : seat[1] # c}, queue) /\ After(c, "idle")
       \/ pc[c] = "both" /\ LetIn(holders \ {<<c, "writer">>}, queue) /\ After(c, "holds")
    /\ UNCHANGED <<role, dead>>

Die(c) == c \notin dead /\ pc[c] # "idle" /\ Cardinality(dead) < Deaths /\ dead' = dead \cup {c} /\ UNCHANGED <<holders, queue, pc, role>>

Expire(c) ==                    \* its leases and places end
    /\ c \in dead /\ pc[c] # "idle"
    /\ LET living(seat) == seat[1] # c IN LetIn({seat \in holders : seat[1] # c}, SelectSeq(queue, living))
    /\ After(c, "idle") /\ UNCHANGED <<role, dead>>

Next == \E c \in Clients : Begin(c) \/ Upgrade(c) \/ Downgrade(c) \/ Leave(c) \/ Die(c) \/ Expire(c)

(* Who holds leaves some time, however often it upgrades, and whoever died is found out. Nobody needs to ask again, to
   upgrade, or to die. *)
Spec == Init /\ [][Next]_vars /\ \A c \in Clients :
    SF_vars(pc[c] = "holds" /\ Leave(c)) /\ WF_vars(pc[c] = "both" /\ Leave(c)) /\ WF_vars(Expire(c))

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

Exclusion == \A seat \in holders : seat[2] = "writer" => \A other \in holders : other[1] = seat[1]
OneUpgradeable == Cardinality({seat \in holders : seat[2] = "upgradeable"}) <= 1
Sound == \A c \in Clients : pc[c] \in {"holds", "both"} => \E seat \in holders : seat[1] = c
NobodyStarves == \A c \in Clients : pc[c] = "waits" ~> pc[c] # "waits"
UpgradeEnds == \A c \in Clients : pc[c] = "upgrades" ~> pc[c] # "upgrades"
==============================================================================

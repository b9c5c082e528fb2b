------------------------------- MODULE Redlock -------------------------------
(* One name on several independent servers, of which most must vote: Redlock with proposed tokens.

   What it stands for: src/leasehold/stores/redis/scripts/redlock_{common,claim,leave}.lua, and their callers,
   src/leasehold/stores/redis/redlock/{rounds,majority,proposals}.py.

   Modelled. A ticket asks all nodes for their votes with a token that it proposes: larger than all that it has seen and not
   below its clock. A node votes if nobody else has its vote and the token is larger than any it has voted for; it
   remembers that number longer than the vote. A ticket that already has the node's vote may raise its token in a later
   round. Whoever has a majority of votes for one token, in time, holds with that token. A round that was not won gives
   its votes back; a ticket that ends leaves everywhere; both raise the node's number. All requests may be lost, repeated and as
   late as they like: what was sent stays deliverable to each node for ever. A lost or late reply is a ticket that does not
   win although it could, or later. Nodes may lose all that they had (Amnesia), and then abstain for Rest ticks if so configured.

   Two kinds of run. With MaxTime = 0 there is no time, and votes may end at any moment (AnyExpiry): tokens must be right
   without any clock. With time, votes end after Lease ticks of the node, and exclusion must hold too. Clocks of clients
   agree with those of nodes; for drift see Lease.

   Left out: the line of waiters (it decides who is told, not who gets it), renewal, lock-delay, breaking.                *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Nodes, Tickets, None,
    Lease, MaxTime,
    MaxRounds,      \* of one ticket
    MaxToken,       \* bound of the search where tokens are chosen freely
    Scale,          \* tokens that pass in a tick of the clock
    AnyExpiry,      \* a vote may end at any moment
    Amnesia,        \* how often a node may lose everything
    Rest,           \* ticks for which a node that lost everything abstains: Lease. Less is a bug
    AnyToken        \* a bug: a node votes whatever it voted for before

VARIABLES
    now,
    vote, upto, ends, top, rests,   \* of each node: who has its vote, with which token, until when; its number; when it votes again
    pc, token, sent, round, seen,   \* of each ticket: "new", "asks", "holds", "left"
    counted,                        \* of each ticket: the nodes whose vote for its present token it has read
    asked, back, left,              \* in the network for ever: <<ticket, token>> claimed, given back, and left with
    began,                          \* history: the largest token granted when the ticket asked for the first time
    granted, grown,                 \* history: tokens granted; they grew in real time, and none was granted twice
    forgot

node == <<vote, upto, ends, top, rests>>
net == <<asked, back, left>>
history == <<began, granted, grown>>
vars == <<now, node, pc, token, sent, round, seen, counted, net, history, forgot>>

Max(a, b) == IF a > b THEN a ELSE b
Highest(set) == CHOOSE k \in set \cup {0} : \A other \in set : k >= other
Majority(set) == 2 * Cardinality(set) > Cardinality(Nodes)

Init ==
    /\ now = 0 /\ vote = [n \in Nodes |-> None] /\ upto = [n \in Nodes |-> 0] /\ ends = [n \in Nodes |-> 0]
    /\ top = [n \in Nodes |-> 0] /\ rests = [n \in Nodes |-> 0]
    /\ pc = [t \in Tickets |-> "new"] /\ token = [t \in Tickets |-> 0] /\ sent = [t \in Tickets |-> 0]
    /\ round = [t \in Tickets |-> 0] /\ seen = [t \in Tickets |-> 0] /\ counted = [t \in Tickets |-> {}]
    /\ asked = {} /\ back = {} /\ left = {} /\ began = [t \in Tickets |-> 0] /\ granted = {} /\ grown = TRUE /\ forgot = 0

Has(n) == vote[n] # None /\ (AnyExpiry \/ now < ends[n])
Valid(t) == pc[t] = "holds" /\ now < sent[t] + Lease

Tick ==             \* what has ended is taken off at once: fewer states
    /\ now < MaxTime /\ now' = now + 1
    /\ LET over(n) == ends[n] <= now + 1 IN
       /\ vote' = [n \in Nodes |-> IF over(n) THEN None ELSE vote[n]]
       /\ upto' = [n \in Nodes |-> IF over(n) THEN 0 ELSE upto[n]]
       /\ ends' = [n \in Nodes |-> IF over(n) THEN 0 ELSE ends[n]]
    /\ rests' = [n \in Nodes |-> IF rests[n] <= now + 1 THEN 0 ELSE rests[n]]
    /\ UNCHANGED <<top, pc, token, sent, round, seen, counted, net, history, forgot>>

(* --- tickets ------------------------------------------------------------------------------------------------------- *)

Proposals(t) ==
    LET least == Max(Max(token[t], seen[t]) + 1, Scale * now + 1) IN
    IF MaxTime = 0 THEN least..MaxToken ELSE {least}

Ask(t) ==           \* the first round, or another one; that gives back first what the last one got
    /\ pc[t] \in {"new", "asks"} /\ round[t] < MaxRounds
    /\ \E k \in Proposals(t) : token' = [token EXCEPT ![t] = k] /\ asked' = asked \cup {<<t, k>>}
    /\ back' \in (IF pc[t] = "new" THEN {back} ELSE {back, back \cup {<<t, token[t]>>}})
    /\ pc' = [pc EXCEPT ![t] = "asks"] /\ sent' = [sent EXCEPT ![t] = now] /\ round' = [round EXCEPT ![t] = @ + 1]
    /\ counted' = [counted EXCEPT ![t] = {}]
    /\ began' = IF pc[t] = "new" THEN [began EXCEPT ![t] = Highest(granted)] ELSE began
    /\ UNCHANGED <<now, node, seen, left, granted, grown, forgot>>

Win(t) ==
    /\ pc[t] = "asks" /\ Majority(counted[t]) /\ now < sent[t] + Lease
    /\ pc' = [pc EXCEPT ![t] = "holds"]
    /\ grown' = (grown /\ token[t] > began[t] /\ token[t] \notin granted) /\ granted' = granted \cup {token[t]}
    /\ UNCHANGED <<now, node, token, sent, round, seen, counted, net, began, forgot>>

Leave(t) ==
    /\ pc[t] \in {"asks", "holds"} /\ pc' = [pc EXCEPT ![t] = "left"] /\ left' = left \cup {<<t, token[t]>>}
    /\ counted' = [counted EXCEPT ![t] = {}] /\ token' = [token EXCEPT ![t] = 0] /\ sent' = [sent EXCEPT ![t] = 0]
    /\ seen' = [seen EXCEPT ![t] = 0] /\ began' = [began EXCEPT ![t] = 0]       \* forgotten: fewer states
    /\ UNCHANGED <<now, node, round, asked, back, granted, grown, forgot>>

(* --- nodes --------------------------------------------------------------------------------------------------------- *)

Read(t, n, k) ==    \* a vote for the present token counts
    counted' = IF pc[t] = "asks" /\ token[t] = k THEN [counted EXCEPT ![t] = @ \cup {n}] ELSE counted

VoteFor(t, n, k) ==     \* nobody has the vote
    /\ <<t, k>> \in asked /\ ~Has(n) /\ now >= rests[n] /\ (k > top[n] \/ AnyToken)
    /\ vote' = [vote EXCEPT ![n] = t] /\ upto' = [upto EXCEPT ![n] = k] /\ ends' = [ends EXCEPT ![n] = now + Lease]
    /\ top' = [top EXCEPT ![n] = Max(@, k)] /\ Read(t, n, k)
    /\ UNCHANGED <<now, rests, pc, token, sent, round, seen, net, history, forgot>>

VoteAgain(t, n, k) ==   \* the ticket has it: its lease begins anew, its token may rise; the reply names the token of the vote
    /\ <<t, k>> \in asked /\ Has(n) /\ vote[n] = t
    /\ LET new == IF k > top[n] THEN k ELSE upto[n] IN
       upto' = [upto EXCEPT ![n] = new] /\ top' = [top EXCEPT ![n] = Max(@, k)] /\ Read(t, n, new)
    /\ ends' = [ends EXCEPT ![n] = now + Lease]
    /\ UNCHANGED <<now, vote, rests, pc, token, sent, round, seen, net, history, forgot>>

Refuse(t, n) ==         \* the reply names the node's number
    /\ pc[t] = "asks" /\ <<t, token[t]>> \in asked /\ top[n] > seen[t] /\ (~Has(n) \/ vote[n] # t)
    /\ seen' = [seen EXCEPT ![t] = top[n]]
    /\ UNCHANGED <<now, node, pc, token, sent, round, counted, net, history, forgot>>

GiveBack(t, n, k) ==    \* of a round: not the vote of a later round of the same ticket
    /\ <<t, k>> \in back /\ ~(Has(n) /\ vote[n] = t /\ upto[n] > k)
    /\ \/ Has(n) /\ vote[n] = t
       \/ top[n] < k
    /\ IF Has(n) /\ vote[n] = t
       THEN vote' = [vote EXCEPT ![n] = None] /\ upto' = [upto EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
       ELSE UNCHANGED <<vote, upto, ends>>
    /\ top' = [top EXCEPT ![n] = Max(@, k)]
    /\ UNCHANGED <<now, rests, pc, token, sent, round, seen, counted, net, history, forgot>>

TakeOut(t, n, k) ==
    /\ <<t, k>> \in left
    /\ \/ Has(n) /\ vote[n] = t
       \/ top[n] < k
    /\ IF Has(n) /\ vote[n] = t
       THEN vote' = [vote EXCEPT ![n] = None] /\ upto' = [upto EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
       ELSE UNCHANGED <<vote, upto, ends>>
    /\ top' = [top EXCEPT ![n] = Max(@, k)]
    /\ UNCHANGED <<now, rests, pc, token, sent, round, seen, counted, net, history, forgot>>

Expire(n) ==            \* before its time
    /\ vote[n] # None /\ AnyExpiry
    /\ vote' = [vote EXCEPT ![n] = None] /\ upto' = [upto EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
    /\ UNCHANGED <<now, top, rests, pc, token, sent, round, seen, counted, net, history, forgot>>

Forget(n) ==
    /\ forgot < Amnesia /\ forgot' = forgot + 1
    /\ vote' = [vote EXCEPT ![n] = None] /\ upto' = [upto EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
    /\ top' = [top EXCEPT ![n] = 0] /\ rests' = [rests EXCEPT ![n] = now + Rest]
    /\ UNCHANGED <<now, pc, token, sent, round, seen, counted, net, history>>

Next ==
    \/ Tick
    \/ \E t \in Tickets : Ask(t) \/ Win(t) \/ Leave(t)
    \/ \E n \in Nodes : Expire(n) \/ Forget(n)
    \/ \E t \in Tickets, n \in Nodes : Refuse(t, n)
    \/ \E n \in Nodes : \E m \in asked : VoteFor(m[1], n, m[2]) \/ VoteAgain(m[1], n, m[2])
    \/ \E n \in Nodes : (\E m \in back : GiveBack(m[1], n, m[2])) \/ (\E m \in left : TakeOut(m[1], n, m[2]))

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

TokensGrow == grown     \* of two grants one after the other the later has the larger token; no two have the same
Exclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u
==============================================================================

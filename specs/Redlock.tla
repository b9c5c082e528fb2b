------------------------------- MODULE Redlock -------------------------------
(* One name on several independent servers, of which a majority must vote: Redlock with proposed tokens.

   It models src/leasehold/stores/redis/scripts/redlock_{common,claim,release}.lua, and their callers,
   src/leasehold/stores/redis/redlock/{rounds,protocol,store}.py.

   Modelled:
   - A ticket asks all nodes for their votes with a token that it proposes. The token is larger than all that the ticket
     has seen, and not below its clock.
   - A node votes if nobody else has its vote and the token is larger than any it has voted for. It remembers that number
     longer than the vote.
   - A ticket that already has the node's vote may raise its token in a later round.
   - A ticket with the votes of a majority for one token, in time, holds with that token.
   - A round without a majority gives its votes back. A ticket that ends is released on all nodes. Both raise the node's
     number.
   - All requests may be lost, repeated and late without limit: a request stays deliverable to each node for ever.
   - A lost or late reply is a ticket that does not win although it could, or wins later.
   - Nodes may lose all their data, or come back with older ones (Amnesia, OldData). Then they abstain for AbstainFor ticks,
     if so configured: also from a vote that is in the data, since its ticket may have given it back.

   Two kinds of run. With MaxTime = 0 there is no time, and votes may end at any moment (AnyExpiry): tokens must be right
   without any clock. With time, votes end after Lease ticks of the node, and exclusion must hold, too. Clocks of clients
   agree with those of nodes; for drift see Lease.

   Left out: the queue of waiters (it decides who is notified, not who acquires), renewal, lock delay, forced release.    *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Nodes, Tickets, None,
    Lease, MaxTime,
    MaxRounds,      \* of one ticket
    MaxToken,       \* bound of the search where tokens are chosen freely
    Scale,          \* tokens that pass in a tick of the clock
    AnyExpiry,      \* a vote may end at any moment
    Amnesia,        \* how often a node may lose its data
    OldData,        \* it may keep older ones
    AbstainFor,     \* ticks for which a node that lost its data abstains: Lease. Less is a bug
    ConfirmsOld,    \* a bug: a node that abstains confirms a vote in its data
    AnyToken        \* a bug: a node votes for any token, whatever it voted for before

VARIABLES
    now,
    \* of each node: the ticket with its vote, the token, the end; its number; when it votes again
    vote, voteToken, ends, highest, abstains,
    pc, token, sent, round, seen,  \* of each ticket: "new", "acquiring", "holds", "released"
    counted,                       \* of each ticket: the nodes whose vote for its present token it has read
    requests, returned, released,  \* in the network for ever: <<ticket, token>> of requests, returned votes, and releases
    began,                         \* history: the largest token that was granted before the ticket's first request
    granted, increasing,           \* history: the granted tokens; they increased in real time, and none was granted twice
    lost

node == <<vote, voteToken, ends, highest, abstains>>
net == <<requests, returned, released>>
history == <<began, granted, increasing>>
vars == <<now, node, pc, token, sent, round, seen, counted, net, history, lost>>

Max(a, b) == IF a > b THEN a ELSE b
Highest(set) == CHOOSE k \in set \cup {0} : \A other \in set : k >= other
Majority(set) == 2 * Cardinality(set) > Cardinality(Nodes)

Init ==
    /\ now = 0 /\ vote = [n \in Nodes |-> None] /\ voteToken = [n \in Nodes |-> 0] /\ ends = [n \in Nodes |-> 0]
    /\ highest = [n \in Nodes |-> 0] /\ abstains = [n \in Nodes |-> 0]
    /\ pc = [t \in Tickets |-> "new"] /\ token = [t \in Tickets |-> 0] /\ sent = [t \in Tickets |-> 0]
    /\ round = [t \in Tickets |-> 0] /\ seen = [t \in Tickets |-> 0] /\ counted = [t \in Tickets |-> {}]
    /\ requests = {} /\ returned = {} /\ released = {} /\ began = [t \in Tickets |-> 0] /\ granted = {} /\ increasing = TRUE /\ lost = 0

Voted(n) == vote[n] # None /\ (AnyExpiry \/ now < ends[n])
Valid(t) == pc[t] = "holds" /\ now < sent[t] + Lease

Tick ==             \* an expired vote is removed at once: fewer states
    /\ now < MaxTime /\ now' = now + 1
    /\ LET over(n) == ends[n] <= now + 1 IN
       /\ vote' = [n \in Nodes |-> IF over(n) THEN None ELSE vote[n]]
       /\ voteToken' = [n \in Nodes |-> IF over(n) THEN 0 ELSE voteToken[n]]
       /\ ends' = [n \in Nodes |-> IF over(n) THEN 0 ELSE ends[n]]
    /\ abstains' = [n \in Nodes |-> IF abstains[n] <= now + 1 THEN 0 ELSE abstains[n]]
    /\ UNCHANGED <<highest, pc, token, sent, round, seen, counted, net, history, lost>>

(* --- tickets ------------------------------------------------------------------------------------------------------- *)

Proposals(t) ==
    LET least == Max(Max(token[t], seen[t]) + 1, Scale * now + 1) IN
    IF MaxTime = 0 THEN least..MaxToken ELSE {least}

StartRound(t) ==    \* the first round, or another one, which first returns the votes of the last one
    /\ pc[t] \in {"new", "acquiring"} /\ round[t] < MaxRounds
    /\ \E k \in Proposals(t) : token' = [token EXCEPT ![t] = k] /\ requests' = requests \cup {<<t, k>>}
    /\ returned' \in (IF pc[t] = "new" THEN {returned} ELSE {returned, returned \cup {<<t, token[t]>>}})
    /\ pc' = [pc EXCEPT ![t] = "acquiring"] /\ sent' = [sent EXCEPT ![t] = now] /\ round' = [round EXCEPT ![t] = @ + 1]
    /\ counted' = [counted EXCEPT ![t] = {}]
    /\ began' = IF pc[t] = "new" THEN [began EXCEPT ![t] = Highest(granted)] ELSE began
    /\ UNCHANGED <<now, node, seen, released, granted, increasing, lost>>

Acquire(t) ==
    /\ pc[t] = "acquiring" /\ Majority(counted[t]) /\ now < sent[t] + Lease
    /\ pc' = [pc EXCEPT ![t] = "holds"]
    /\ increasing' = (increasing /\ token[t] > began[t] /\ token[t] \notin granted) /\ granted' = granted \cup {token[t]}
    /\ UNCHANGED <<now, node, token, sent, round, seen, counted, net, began, lost>>

Release(t) ==
    /\ pc[t] \in {"acquiring", "holds"} /\ pc' = [pc EXCEPT ![t] = "released"] /\ released' = released \cup {<<t, token[t]>>}
    /\ counted' = [counted EXCEPT ![t] = {}] /\ token' = [token EXCEPT ![t] = 0] /\ sent' = [sent EXCEPT ![t] = 0]
    /\ seen' = [seen EXCEPT ![t] = 0] /\ began' = [began EXCEPT ![t] = 0]  \* forgotten: fewer states
    /\ UNCHANGED <<now, node, round, requests, returned, granted, increasing, lost>>

(* --- nodes --------------------------------------------------------------------------------------------------------- *)

CountVote(t, n, k) ==  \* a vote for the present token counts
    counted' = IF pc[t] = "acquiring" /\ token[t] = k THEN [counted EXCEPT ![t] = @ \cup {n}] ELSE counted

VoteFor(t, n, k) ==  \* the node's vote is free
    /\ <<t, k>> \in requests /\ ~Voted(n) /\ now >= abstains[n] /\ (k > highest[n] \/ AnyToken)
    /\ vote' = [vote EXCEPT ![n] = t] /\ voteToken' = [voteToken EXCEPT ![n] = k] /\ ends' = [ends EXCEPT ![n] = now + Lease]
    /\ highest' = [highest EXCEPT ![n] = Max(@, k)] /\ CountVote(t, n, k)
    /\ UNCHANGED <<now, abstains, pc, token, sent, round, seen, net, history, lost>>

VoteAgain(t, n, k) ==  \* the ticket has the vote: its lease starts again, its token may rise; the reply has that token
    /\ <<t, k>> \in requests /\ Voted(n) /\ vote[n] = t /\ (now >= abstains[n] \/ ConfirmsOld)
    /\ LET new == IF k > highest[n] THEN k ELSE voteToken[n] IN
       voteToken' = [voteToken EXCEPT ![n] = new] /\ highest' = [highest EXCEPT ![n] = Max(@, k)] /\ CountVote(t, n, new)
    /\ ends' = [ends EXCEPT ![n] = now + Lease]
    /\ UNCHANGED <<now, vote, abstains, pc, token, sent, round, seen, net, history, lost>>

Refuse(t, n) ==     \* the reply has the node's number
    /\ pc[t] = "acquiring" /\ <<t, token[t]>> \in requests /\ highest[n] > seen[t] /\ (~Voted(n) \/ vote[n] # t)
    /\ seen' = [seen EXCEPT ![t] = highest[n]]
    /\ UNCHANGED <<now, node, pc, token, sent, round, counted, net, history, lost>>

ReturnVote(t, n, k) ==  \* of one round: it does not remove the vote of a later round of the same ticket
    /\ <<t, k>> \in returned /\ ~(Voted(n) /\ vote[n] = t /\ voteToken[n] > k)
    /\ \/ Voted(n) /\ vote[n] = t
       \/ highest[n] < k
    /\ IF Voted(n) /\ vote[n] = t
       THEN vote' = [vote EXCEPT ![n] = None] /\ voteToken' = [voteToken EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
       ELSE UNCHANGED <<vote, voteToken, ends>>
    /\ highest' = [highest EXCEPT ![n] = Max(@, k)]
    /\ UNCHANGED <<now, abstains, pc, token, sent, round, seen, counted, net, history, lost>>

ReleaseAtNode(t, n, k) ==
    /\ <<t, k>> \in released
    /\ \/ Voted(n) /\ vote[n] = t
       \/ highest[n] < k
    /\ IF Voted(n) /\ vote[n] = t
       THEN vote' = [vote EXCEPT ![n] = None] /\ voteToken' = [voteToken EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
       ELSE UNCHANGED <<vote, voteToken, ends>>
    /\ highest' = [highest EXCEPT ![n] = Max(@, k)]
    /\ UNCHANGED <<now, abstains, pc, token, sent, round, seen, counted, net, history, lost>>

Expire(n) ==        \* earlier than its lease
    /\ vote[n] # None /\ AnyExpiry
    /\ vote' = [vote EXCEPT ![n] = None] /\ voteToken' = [voteToken EXCEPT ![n] = 0] /\ ends' = [ends EXCEPT ![n] = 0]
    /\ UNCHANGED <<now, highest, abstains, pc, token, sent, round, seen, counted, net, history, lost>>

LoseData(n) ==      \* older data may have a vote for any request that it may have voted for; at worst it was just now
    /\ lost < Amnesia /\ lost' = lost + 1
    /\ \/ /\ vote' = [vote EXCEPT ![n] = None] /\ voteToken' = [voteToken EXCEPT ![n] = 0]
          /\ ends' = [ends EXCEPT ![n] = 0] /\ highest' = [highest EXCEPT ![n] = 0]
       \/ /\ OldData
          /\ \E m \in requests :
               /\ m[2] <= highest[n] /\ vote' = [vote EXCEPT ![n] = m[1]] /\ voteToken' = [voteToken EXCEPT ![n] = m[2]]
               /\ ends' = [ends EXCEPT ![n] = now + Lease] /\ highest' = [highest EXCEPT ![n] = m[2]]
    /\ abstains' = [abstains EXCEPT ![n] = now + AbstainFor]
    /\ UNCHANGED <<now, pc, token, sent, round, seen, counted, net, history>>

Next ==
    \/ Tick
    \/ \E t \in Tickets : StartRound(t) \/ Acquire(t) \/ Release(t)
    \/ \E n \in Nodes : Expire(n) \/ LoseData(n)
    \/ \E t \in Tickets, n \in Nodes : Refuse(t, n)
    \/ \E n \in Nodes : \E m \in requests : VoteFor(m[1], n, m[2]) \/ VoteAgain(m[1], n, m[2])
    \/ \E n \in Nodes : (\E m \in returned : ReturnVote(m[1], n, m[2])) \/ (\E m \in released : ReleaseAtNode(m[1], n, m[2]))

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

TokensIncrease == increasing  \* of two successive grants, the later one has the larger token; no two have the same
Exclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u
==============================================================================

-------------------------------- MODULE Lease --------------------------------
(* The lease of one name on one server, with tickets and fencing tokens.

   What it stands for: src/leasehold/stores/redis/scripts/{common,claim,leave,renew}.lua, the life of a hold in
   src/leasehold/_engine/{acquire,engine,lease}.py, and a guard as in src/leasehold/guards/.

   Modelled. A ticket is chosen before anything is sent, so it is the actor here: it asks, may ask again, holds, renews,
   leaves; a client is as many tickets as it makes, one after the other. The network may lose each request and each reply,
   deliver a request again, and as late as it likes: a request that was sent stays deliverable for ever. A reply is read by
   the request that it answers, or never, for a connection with an unread reply is closed. The holder believes until
   `since + Lease - Margin` on its own clock, which may lose Drift ticks on the server's meanwhile. A ticket that lost
   its lease may be a process that was stopped: it writes whenever it likes. The server may lose all that it had (CanFlush).

   Left out: the queue (see Queue), the wake-up (see Wakeup), lock-delay, breaking, memory limits. Time is in ticks.   *)
EXTENDS Naturals

CONSTANTS
    Tickets,        \* model values, symmetric
    None,           \* no ticket
    Lease,          \* ticks
    Drift,          \* ticks that a client's clock may lose during one lease
    Margin,         \* ticks by which a client ends its belief early
    MaxTime, MaxTries, MaxGrants,                       \* bounds of the search
    CanFlush,       \* the server may lose everything, once per tick at most
    ClockTokens,    \* tokens are not below the server's clock. FALSE: the stored number + 1
    FromReply,      \* a bug: validity counts from when the reply was read
    LeaveByName,    \* a bug: a leave frees the name whoever has it
    ReuseToken,     \* a bug: a grant repeats the last token
    GuardOff        \* a bug: the resource does not look at tokens

VARIABLES
    now,            \* the server's clock
    holder, ends,   \* the ticket on the server, and when its lease ends
    fence,          \* the highest token
    nth,            \* history: how many grants there were
    pc,             \* of each ticket: "new", "asks", "holds", "left"
    try, sent,      \* how often it has sent what it waits for, and when it did last
    reply,          \* whether the server has answered that request, and the answer can still be read
    deadline,       \* until when it believes that it holds
    token, grant,   \* its token, and which grant that was
    asked, leaves,  \* what is in the network for ever: <<ticket, try>> of claims and renewals, and tickets of leaves
    high, last,     \* the guarded resource: highest token, and the grant that wrote last
    s0, grown       \* history: nothing was written backwards; tokens have grown

server == <<holder, ends, fence, nth, grown>>
guard == <<high, last, s0>>
vars == <<now, server, pc, try, sent, reply, deadline, token, grant, asked, leaves, guard>>

Init ==
    /\ now = 1 /\ holder = None /\ ends = 0 /\ fence = 0 /\ nth = 0
    /\ pc = [t \in Tickets |-> "new"] /\ try = [t \in Tickets |-> 0] /\ sent = [t \in Tickets |-> 0]
    /\ reply = [t \in Tickets |-> FALSE] /\ deadline = [t \in Tickets |-> 0]
    /\ token = [t \in Tickets |-> 0] /\ grant = [t \in Tickets |-> 0]
    /\ asked = {} /\ leaves = {} /\ high = 0 /\ last = 0 /\ s0 = TRUE /\ grown = TRUE

Max(a, b) == IF a > b THEN a ELSE b
Held == holder # None /\ now < ends
Valid(t) == pc[t] = "holds" /\ now < deadline[t] + Drift

Tick == now < MaxTime /\ now' = now + 1 /\ UNCHANGED <<server, pc, try, sent, reply, deadline, token, grant, asked, leaves, guard>>

(* --- what the client does ------------------------------------------------------------------------------------------ *)

Send(t) ==          \* a claim, or a renewal: for the first time, or again since there was no answer
    /\ pc[t] \in {"new", "asks", "holds"} /\ try[t] < MaxTries
    /\ pc[t] = "holds" => Valid(t)
    /\ pc' = [pc EXCEPT ![t] = IF @ = "new" THEN "asks" ELSE @]
    /\ try' = [try EXCEPT ![t] = @ + 1] /\ sent' = [sent EXCEPT ![t] = now] /\ reply' = [reply EXCEPT ![t] = FALSE]
    /\ asked' = asked \cup {<<t, try[t] + 1, IF pc[t] = "holds" THEN "renew" ELSE "claim">>}
    /\ UNCHANGED <<now, server, deadline, token, grant, leaves, guard>>

Hear(t) ==          \* it reads the answer: believed if it is not too late for that (else it leaves)
    LET since == IF FromReply THEN now ELSE sent[t]
        until == since + Lease - Margin IN
    /\ reply[t] /\ now < until + Drift
    /\ pc[t] = "holds" => Valid(t)
    /\ pc' = [pc EXCEPT ![t] = "holds"] /\ deadline' = [deadline EXCEPT ![t] = Max(@, until)]
    /\ reply' = [reply EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, server, try, sent, token, grant, asked, leaves, guard>>

Leave(t) ==         \* a release, a lost lease, a timeout, a cancelled call, a grant that came too late: leave by ticket
    /\ pc[t] \in {"asks", "holds"}
    /\ pc' = [pc EXCEPT ![t] = "left"] /\ reply' = [reply EXCEPT ![t] = FALSE] /\ leaves' = leaves \cup {t}
    /\ UNCHANGED <<now, server, try, sent, deadline, token, grant, asked, guard>>

Write(t) ==         \* also by one that has lost its lease and does not know
    /\ pc[t] \in {"holds", "left"} /\ token[t] # 0 /\ deadline[t] # 0
    /\ GuardOff \/ token[t] >= high
    /\ high' = token[t] /\ last' = grant[t] /\ s0' = (s0 /\ grant[t] >= last)
    /\ UNCHANGED <<now, server, pc, try, sent, reply, deadline, token, grant, asked, leaves>>

(* --- what the server does ------------------------------------------------------------------------------------------ *)

Answers(t, n) == IF try[t] = n /\ pc[t] \in {"asks", "holds"} THEN reply' = [reply EXCEPT ![t] = TRUE] ELSE UNCHANGED reply

ClaimAgain(t, n) == \* a repeated claim: the same token, and a full lease again
    /\ <<t, n, "claim">> \in asked /\ Held /\ holder = t
    /\ ends' = now + Lease /\ Answers(t, n)
    /\ UNCHANGED <<now, holder, fence, nth, grown, pc, try, sent, deadline, token, grant, asked, leaves, guard>>

Grant(t, n) ==
    LET next == IF ReuseToken THEN Max(fence, 1) ELSE Max(fence + 1, IF ClockTokens THEN now ELSE 0) IN
    /\ <<t, n, "claim">> \in asked /\ ~Held /\ nth < MaxGrants
    /\ holder' = t /\ ends' = now + Lease /\ fence' = next /\ nth' = nth + 1
    /\ grown' = (grown /\ \A other \in Tickets : next > token[other])
    /\ Answers(t, n)
    \* The token is in the reply. One that holds, or has left, reads no reply to a claim: a grant to it is to nobody.
    /\ IF pc[t] = "asks" THEN token' = [token EXCEPT ![t] = next] /\ grant' = [grant EXCEPT ![t] = nth + 1]
                         ELSE UNCHANGED <<token, grant>>
    /\ UNCHANGED <<now, pc, try, sent, deadline, asked, leaves, guard>>

Renew(t, n) ==
    /\ <<t, n, "renew">> \in asked /\ Held /\ holder = t
    /\ ends' = now + Lease /\ Answers(t, n)
    /\ UNCHANGED <<now, holder, fence, nth, grown, pc, try, sent, deadline, token, grant, asked, leaves, guard>>

Free(t) ==
    /\ t \in leaves /\ Held /\ (holder = t \/ LeaveByName)
    /\ holder' = None /\ ends' = 0
    /\ UNCHANGED <<now, fence, nth, grown, pc, try, sent, reply, deadline, token, grant, asked, leaves, guard>>

Flush ==            \* tokens are in microseconds: the clock has gone past the last one before the next grant
    /\ CanFlush /\ fence < now /\ (Held \/ fence > 0)
    /\ holder' = None /\ ends' = 0 /\ fence' = 0
    /\ UNCHANGED <<now, nth, grown, pc, try, sent, reply, deadline, token, grant, asked, leaves, guard>>

Next ==
    \/ Tick \/ Flush
    \/ \E t \in Tickets : Send(t) \/ Hear(t) \/ Leave(t) \/ Write(t) \/ Free(t)
    \/ \E t \in Tickets, n \in 1..MaxTries : ClaimAgain(t, n) \/ Grant(t, n) \/ Renew(t, n)

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

FencedSafety == s0                                                  \* S0: no write of an older grant after a newer one's
TimedExclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u                                           \* S1
TokensGrow == grown
Backed == \A t \in Tickets : Valid(t) => Held /\ holder = t         \* nobody else's leave frees what somebody believes in
==============================================================================

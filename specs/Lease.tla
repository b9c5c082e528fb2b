-------------------------------- MODULE Lease --------------------------------
(* The lease of one name on one server, with tickets and fencing tokens.

   It models src/leasehold/stores/redis/scripts/{common,claim_free,claim,release_free,release,renew}.lua, the life of a
   hold in src/leasehold/_engine/{acquire,engine,lease}.py, and a guard as in src/leasehold/guards/.

   Modelled:
   - The actor is the ticket, which is chosen before anything is sent. It sends a claim, may repeat it, holds, renews, and
     is released. A client is as many tickets as it makes, one after the other.
   - The network may lose each request and each reply. It may deliver a request twice, and late without limit: a request
     that was sent stays deliverable for ever.
   - A reply is read by the request that it answers, or never: a connection with an unread reply is closed.
   - The holder believes that it holds until `since + Lease - Margin` on its own clock. Meanwhile that clock may lose
     Drift ticks on the server's.
   - A ticket that lost its lease may belong to a process that was stopped: it may write at any time.
   - The server may lose all its data (CanFlush).

   Left out: the queue (see Queue), the wake-up (see Wakeup), lock delay, forced release, memory limits. Time is in ticks. *)
EXTENDS Naturals

CONSTANTS
    Tickets,                       \* model values, symmetric
    None,                          \* no ticket
    Lease,                         \* ticks
    Drift,                         \* ticks that a client's clock may lose during one lease
    Margin,                        \* ticks by which a holder ends its belief early
    MaxTime, MaxTries, MaxGrants,  \* bounds of the search
    CanFlush,                      \* the server may lose all its data, at most once a tick
    ClockTokens,                   \* a token is at least the server's clock. FALSE: the stored number + 1
    FromReply,                     \* a bug: validity counts from the reply, not from the request
    ReleaseByName,                 \* a bug: a release frees the name, whoever holds it
    ReuseToken,                    \* a bug: a grant has the token of the last one
    GuardOff                       \* a bug: the resource does not check tokens

VARIABLES
    now,                 \* the server's clock
    holder, ends,        \* the holder as the server knows it, and the end of its lease
    fence,               \* the highest token so far
    grants,              \* history: the number of grants so far
    pc,                  \* of each ticket: "new", "acquiring", "holds", "released"
    attempt, sent,       \* the number of its requests, and when it sent the last one
    reply,               \* whether that request has a reply that it can still read
    deadline,            \* until then it believes that it holds
    token, grant,        \* its token, and the number of its grant
    requests, releases,  \* in the network for ever: <<ticket, attempt, kind>> of claims and renewals; released tickets
    high, last,          \* the guarded resource: the highest token seen, and the grant of the last write
    fenced, increasing   \* history: no write of an older grant followed a newer one's; tokens increased

server == <<holder, ends, fence, grants, increasing>>
guard == <<high, last, fenced>>
vars == <<now, server, pc, attempt, sent, reply, deadline, token, grant, requests, releases, guard>>

Init ==
    /\ now = 1 /\ holder = None /\ ends = 0 /\ fence = 0 /\ grants = 0
    /\ pc = [t \in Tickets |-> "new"] /\ attempt = [t \in Tickets |-> 0] /\ sent = [t \in Tickets |-> 0]
    /\ reply = [t \in Tickets |-> FALSE] /\ deadline = [t \in Tickets |-> 0]
    /\ token = [t \in Tickets |-> 0] /\ grant = [t \in Tickets |-> 0]
    /\ requests = {} /\ releases = {} /\ high = 0 /\ last = 0 /\ fenced = TRUE /\ increasing = TRUE

Max(a, b) == IF a > b THEN a ELSE b
Held == holder # None /\ now < ends
Valid(t) == pc[t] = "holds" /\ now < deadline[t] + Drift

Tick ==
    /\ now < MaxTime /\ now' = now + 1
    /\ UNCHANGED <<server, pc, attempt, sent, reply, deadline, token, grant, requests, releases, guard>>

(* --- what the client does ------------------------------------------------------------------------------------------ *)

Send(t) ==          \* a claim or a renewal: the first one, or a repeated one
    /\ pc[t] \in {"new", "acquiring", "holds"} /\ attempt[t] < MaxTries
    /\ pc[t] = "holds" => Valid(t)
    /\ pc' = [pc EXCEPT ![t] = IF @ = "new" THEN "acquiring" ELSE @]
    /\ attempt' = [attempt EXCEPT ![t] = @ + 1] /\ sent' = [sent EXCEPT ![t] = now] /\ reply' = [reply EXCEPT ![t] = FALSE]
    /\ requests' = requests \cup {<<t, attempt[t] + 1, IF pc[t] = "holds" THEN "renew" ELSE "claim">>}
    /\ UNCHANGED <<now, server, deadline, token, grant, releases, guard>>

ReadReply(t) ==     \* it reads the reply, and holds if the lease has not ended by then (if it has: Release)
    LET since == IF FromReply THEN now ELSE sent[t]
        until == since + Lease - Margin IN
    /\ reply[t] /\ now < until + Drift
    /\ pc[t] = "holds" => Valid(t)
    /\ pc' = [pc EXCEPT ![t] = "holds"] /\ deadline' = [deadline EXCEPT ![t] = Max(@, until)]
    /\ reply' = [reply EXCEPT ![t] = FALSE]
    /\ UNCHANGED <<now, server, attempt, sent, token, grant, requests, releases, guard>>

Release(t) ==       \* at a release, a lost lease, a timeout, a cancelled call, or a grant that came too late
    /\ pc[t] \in {"acquiring", "holds"}
    /\ pc' = [pc EXCEPT ![t] = "released"] /\ reply' = [reply EXCEPT ![t] = FALSE] /\ releases' = releases \cup {t}
    /\ UNCHANGED <<now, server, attempt, sent, deadline, token, grant, requests, guard>>

Write(t) ==         \* also by a ticket that has lost its lease and does not know
    /\ pc[t] \in {"holds", "released"} /\ token[t] # 0 /\ deadline[t] # 0
    /\ GuardOff \/ token[t] >= high
    /\ high' = token[t] /\ last' = grant[t] /\ fenced' = (fenced /\ grant[t] >= last)
    /\ UNCHANGED <<now, server, pc, attempt, sent, reply, deadline, token, grant, requests, releases>>

(* --- what the server does ------------------------------------------------------------------------------------------ *)

Answers(t, n) ==
    IF attempt[t] = n /\ pc[t] \in {"acquiring", "holds"} THEN reply' = [reply EXCEPT ![t] = TRUE] ELSE UNCHANGED reply

RepeatedClaim(t, n) ==  \* of the holder: the same token, and a full lease again
    /\ <<t, n, "claim">> \in requests /\ Held /\ holder = t
    /\ ends' = now + Lease /\ Answers(t, n)
   
    /\ UNCHANGED <<now, holder, fence, grants, increasing, pc, attempt, sent, deadline, token, grant, requests, releases, guard>>

Grant(t, n) ==
    LET next == IF ReuseToken THEN Max(fence, 1) ELSE Max(fence + 1, IF ClockTokens THEN now ELSE 0) IN
    /\ <<t, n, "claim">> \in requests /\ ~Held /\ grants < MaxGrants
    /\ holder' = t /\ ends' = now + Lease /\ fence' = next /\ grants' = grants + 1
    /\ increasing' = (increasing /\ \A other \in Tickets : next > token[other])
    /\ Answers(t, n)
    \* The token is in the reply. A ticket that holds or was released reads no reply to a claim: nobody uses that grant.
    /\ IF pc[t] = "acquiring" THEN token' = [token EXCEPT ![t] = next] /\ grant' = [grant EXCEPT ![t] = grants + 1]
                         ELSE UNCHANGED <<token, grant>>
    /\ UNCHANGED <<now, pc, attempt, sent, deadline, requests, releases, guard>>

Renew(t, n) ==
    /\ <<t, n, "renew">> \in requests /\ Held /\ holder = t
    /\ ends' = now + Lease /\ Answers(t, n)
   
    /\ UNCHANGED <<now, holder, fence, grants, increasing, pc, attempt, sent, deadline, token, grant, requests, releases, guard>>

ReleaseArrives(t) ==
    /\ t \in releases /\ Held /\ (holder = t \/ ReleaseByName)
    /\ holder' = None /\ ends' = 0
   
    /\ UNCHANGED <<now, fence, grants, increasing, pc, attempt, sent, reply, deadline, token, grant, requests, releases, guard>>

Flush ==            \* real tokens count microseconds: before the next grant the clock has passed the last one
    /\ CanFlush /\ fence < now /\ (Held \/ fence > 0)
    /\ holder' = None /\ ends' = 0 /\ fence' = 0
    /\ UNCHANGED <<now, grants, increasing, pc, attempt, sent, reply, deadline, token, grant, requests, releases, guard>>

Next ==
    \/ Tick \/ Flush
    \/ \E t \in Tickets : Send(t) \/ ReadReply(t) \/ Release(t) \/ Write(t) \/ ReleaseArrives(t)
    \/ \E t \in Tickets, n \in 1..MaxTries : RepeatedClaim(t, n) \/ Grant(t, n) \/ Renew(t, n)

Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

FencedSafety == fenced  \* no write of an older grant after one of a newer grant
TimedExclusion == \A t, u \in Tickets : Valid(t) /\ Valid(u) => t = u
TokensIncrease == increasing
\* no release frees a lock that another ticket believes it holds
HeldOnServer == \A t \in Tickets : Valid(t) => Held /\ holder = t
==============================================================================

-------------------------------- MODULE Queue --------------------------------
(* The fair queue of one name, whose waiters and holders die at any time.

   It models src/leasehold/stores/redis/scripts/{common,queue,claim,release,renew_waiters}.lua (hand_over above all) with
   fair=True, and the renewals of src/leasehold/_engine/watchdog/watchdog.py.

   Modelled:
   - A waiter has a queue entry, which expires if it is not renewed. A living client renews its entry, and as a holder its
     lease, at least once in Every ticks.
   - A release grants the name in the same step to the first waiter whose entry has not expired.
   - There is no background job. A dead holder is noticed by the next client that sends a claim or renews an entry.
   - A ticket may die at any step, also as the first waiter that is about to be granted the name.

   Left out: lost messages (see Wakeup; here a waiter knows of its grant at once), a waiter that is passed over since it
   has no subscription, lock delay, tokens (see Lease). Time is in ticks.                                               *)
EXTENDS Naturals, Sequences

CONSTANTS
    Tickets, None,
    Lease,          \* ticks until a hold or a queue entry expires without a renewal
    Every,          \* the most ticks between two renewals of a living client
    MaxTime,
    EntryLife,      \* ticks until a queue entry expires: Lease. A bug if below Every: a living waiter loses its entry
    SkipDead,       \* a hand-over skips expired entries. FALSE is a bug
    Barge           \* a bug: a newcomer acquires a free name although others wait

VARIABLES
    now,
    holder, ends,   \* the holder, and the end of its lease
    queue,          \* in order of arrival
    renewed,        \* of each ticket: the time of its last renewal
    state,          \* of each ticket: "new", "waits", "holds", "released"
    dead,           \* the tickets whose clients died
    since,          \* history: the last time at which a living holder ended or a client died
    ordered         \* history: no grant passed over a living waiter that came earlier

vars == <<now, holder, ends, queue, renewed, state, dead, since, ordered>>

Init ==
    /\ now = 0 /\ holder = None /\ ends = 0 /\ queue = <<>> /\ renewed = [t \in Tickets |-> 0]
    /\ state = [t \in Tickets |-> "new"] /\ dead = {} /\ since = 0 /\ ordered = TRUE

Alive(t) == t \notin dead
Active(t) == state[t] \in {"waits", "holds"}
Free == holder = None \/ now >= ends
Current(t, times) == times[t] + EntryLife > now
Without(t, waiters) == SelectSeq(waiters, LAMBDA u : u # t)

(* Grant the name to the first waiter whose entry has not expired; that entry and all before it are removed.
   STATES, WAITERS and TIMES are as the step has made them so far. *)
HandOver(states, waiters, times) ==
    LET current == {i \in 1..Len(waiters) : Current(waiters[i], times) \/ ~SkipDead}
        first == CHOOSE i \in current : \A j \in current : i <= j
        next == waiters[first] IN
    IF current = {}
    THEN /\ holder' = None /\ ends' = 0 /\ queue' = <<>> /\ state' = states /\ renewed' = times /\ UNCHANGED ordered
    ELSE /\ holder' = next /\ ends' = now + Lease /\ queue' = SubSeq(waiters, first + 1, Len(waiters))
         /\ state' = [states EXCEPT ![next] = "holds"] /\ renewed' = [times EXCEPT ![next] = now]
         /\ ordered' = (ordered /\ \A i \in 1..(first - 1) : waiters[i] \in dead)

Tick ==             \* living clients renew in time, so time passes only while no renewal is due
    /\ now < MaxTime
    /\ \A t \in Tickets : Alive(t) /\ Active(t) => renewed[t] + Every > now
    /\ now' = now + 1 /\ UNCHANGED <<holder, ends, queue, renewed, state, dead, since, ordered>>

Claim(t) ==
    /\ state[t] = "new" /\ Alive(t)
    /\ LET states == [state EXCEPT ![t] = "waits"]
           times == [renewed EXCEPT ![t] = now] IN
       IF ~Free THEN /\ queue' = Append(queue, t) /\ state' = states /\ renewed' = times
       /\ UNCHANGED <<holder, ends, ordered>>
       ELSE IF Barge THEN /\ holder' = t /\ ends' = now + Lease /\ state' = [state EXCEPT ![t] = "holds"] /\ renewed' = times
                          /\ ordered' = (ordered /\ \A i \in 1..Len(queue) : queue[i] \in dead) /\ UNCHANGED queue
       ELSE HandOver(states, Append(queue, t), times)
    /\ since' = IF \E u \in Tickets : state[u] = "waits" /\ Alive(u) THEN since ELSE now
    /\ UNCHANGED <<now, dead>>

RenewEntry(t) ==    \* the watchdog renews a queue entry
    /\ state[t] = "waits" /\ Alive(t) /\ renewed[t] < now
    /\ LET known == \E i \in 1..Len(queue) : queue[i] = t /\ Current(t, renewed)  \* a removed entry is not added again
           times == IF known THEN [renewed EXCEPT ![t] = now] ELSE renewed IN
       IF Free THEN HandOver(state, queue, times)
               ELSE renewed' = times /\ UNCHANGED <<holder, ends, queue, state, ordered>>
    /\ UNCHANGED <<now, dead, since>>

Renew(t) ==
    /\ state[t] = "holds" /\ holder = t /\ Alive(t) /\ renewed[t] < now /\ now < ends
    /\ ends' = now + Lease /\ renewed' = [renewed EXCEPT ![t] = now]
    /\ UNCHANGED <<now, holder, queue, state, dead, since, ordered>>

Release(t) ==
    /\ Active(t) /\ Alive(t)
    /\ LET states == [state EXCEPT ![t] = "released"] IN
       IF holder = t \/ Free THEN HandOver(states, Without(t, queue), renewed)
       ELSE queue' = Without(t, queue) /\ state' = states /\ UNCHANGED <<holder, ends, renewed, ordered>>
    /\ since' = now /\ UNCHANGED <<now, dead>>

Die(t) ==
    /\ Active(t) /\ Alive(t) /\ dead' = dead \cup {t} /\ since' = now
    /\ UNCHANGED <<now, holder, ends, queue, renewed, state, ordered>>

Next == Tick \/ \E t \in Tickets : Claim(t) \/ RenewEntry(t) \/ Renew(t) \/ Release(t) \/ Die(t)
Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

Ordered == ordered
OneHolder == \A t \in Tickets : Alive(t) /\ state[t] = "holds" => holder = t /\ now < ends
NoEntryLost == \A t \in Tickets : Alive(t) /\ state[t] = "waits" => \E i \in 1..Len(queue) : queue[i] = t
(* However many died: without a living holder, a living waiter waits for at most two leases and one renewal. One lease for
   the holder that died; one more if the name was granted to a dead waiter whose entry had not expired yet. There is no
   third: when that second lease ends, the entries of all that died before have expired. *)
Bounded ==
    (\E t \in Tickets : Alive(t) /\ state[t] = "waits") /\ ~(holder # None /\ Alive(holder) /\ now < ends)
        => now <= since + 2 * Lease + Every
==============================================================================

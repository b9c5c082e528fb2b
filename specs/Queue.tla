-------------------------------- MODULE Queue --------------------------------
(* The fair queue of one name, whose waiters and holders die at any time.

   What it stands for: src/leasehold/stores/redis/scripts/{common,claim,leave,stay}.lua (hand_over above all) with fair=True,
   and the renewals of src/leasehold/_engine/watchdog/watchdog.py.

   Modelled. A waiter has a place and a time at which it is given up; whoever lives renews its place, and as holder its
   lease, every Every ticks at least. A name that is let go is handed in the same step to the first whose place still
   counts. Nobody sweeps: a holder that died is found out by whoever looks next, with a claim or with the renewal of a
   place. A ticket dies at any step, also as the head that is about to be given the name.

   Left out: lost messages (see Wakeup; here a grant is known at once), a waiter that nobody hears for and that is passed over, lock-delay,
   tokens (see Lease). Time is in ticks.                                                                                *)
EXTENDS Naturals, Sequences

CONSTANTS
    Tickets, None,
    Lease,          \* ticks: of a hold, and of a place
    Every,          \* ticks between two renewals of one that lives, at most
    MaxTime,
    PlaceLife,      \* ticks after which a place is given up: Lease. A bug if below Every: a place dropped while alive
    SkipDead,       \* a hand-over passes over places that are given up. FALSE is a bug
    Barge           \* a bug: a newcomer takes a free name although others wait

VARIABLES
    now,
    holder, ends,   \* who has the name, and until when without a renewal
    queue,          \* in order of arrival
    beat,           \* of each ticket: when it renewed last
    state,          \* of each ticket: "new", "waits", "holds", "left"
    dead,           \* those that died
    since,          \* history: when a living holder ended last, or anybody died
    ordered         \* history: nobody was let in before a living waiter that came earlier

vars == <<now, holder, ends, queue, beat, state, dead, since, ordered>>

Init ==
    /\ now = 0 /\ holder = None /\ ends = 0 /\ queue = <<>> /\ beat = [t \in Tickets |-> 0]
    /\ state = [t \in Tickets |-> "new"] /\ dead = {} /\ since = 0 /\ ordered = TRUE

Lives(t) == t \notin dead
Uses(t) == state[t] \in {"waits", "holds"}
Free == holder = None \/ now >= ends
Counts(t, beats) == beats[t] + PlaceLife > now
Without(t, line) == SelectSeq(line, LAMBDA u : u # t)

(* Hand the name over: everybody up to the first whose place counts is taken out of the line, and that one holds.
   STATES, LINE and BEATS are as the step has made them so far. *)
HandOver(states, line, beats) ==
    LET able == {i \in 1..Len(line) : Counts(line[i], beats) \/ ~SkipDead}
        first == CHOOSE i \in able : \A j \in able : i <= j
        next == line[first] IN
    IF able = {}
    THEN /\ holder' = None /\ ends' = 0 /\ queue' = <<>> /\ state' = states /\ beat' = beats /\ UNCHANGED ordered
    ELSE /\ holder' = next /\ ends' = now + Lease /\ queue' = SubSeq(line, first + 1, Len(line))
         /\ state' = [states EXCEPT ![next] = "holds"] /\ beat' = [beats EXCEPT ![next] = now]
         /\ ordered' = (ordered /\ \A i \in 1..(first - 1) : line[i] \in dead)

Tick ==             \* who lives renews in time; so time goes on only when nobody is late
    /\ now < MaxTime
    /\ \A t \in Tickets : Lives(t) /\ Uses(t) => beat[t] + Every > now
    /\ now' = now + 1 /\ UNCHANGED <<holder, ends, queue, beat, state, dead, since, ordered>>

Claim(t) ==
    /\ state[t] = "new" /\ Lives(t)
    /\ LET states == [state EXCEPT ![t] = "waits"]
           beats == [beat EXCEPT ![t] = now] IN
       IF ~Free THEN /\ queue' = Append(queue, t) /\ state' = states /\ beat' = beats /\ UNCHANGED <<holder, ends, ordered>>
       ELSE IF Barge THEN /\ holder' = t /\ ends' = now + Lease /\ state' = [state EXCEPT ![t] = "holds"] /\ beat' = beats
                          /\ ordered' = (ordered /\ \A i \in 1..Len(queue) : queue[i] \in dead) /\ UNCHANGED queue
       ELSE HandOver(states, Append(queue, t), beats)
    /\ since' = IF \E u \in Tickets : state[u] = "waits" /\ Lives(u) THEN since ELSE now
    /\ UNCHANGED <<now, dead>>

Stay(t) ==          \* the keeper renews a place
    /\ state[t] = "waits" /\ Lives(t) /\ beat[t] < now
    /\ LET known == \E i \in 1..Len(queue) : queue[i] = t /\ Counts(t, beat)   \* none is put back that is not there
           beats == IF known THEN [beat EXCEPT ![t] = now] ELSE beat IN
       IF Free THEN HandOver(state, queue, beats)
               ELSE beat' = beats /\ UNCHANGED <<holder, ends, queue, state, ordered>>
    /\ UNCHANGED <<now, dead, since>>

Renew(t) ==
    /\ state[t] = "holds" /\ holder = t /\ Lives(t) /\ beat[t] < now /\ now < ends
    /\ ends' = now + Lease /\ beat' = [beat EXCEPT ![t] = now]
    /\ UNCHANGED <<now, holder, queue, state, dead, since, ordered>>

Leave(t) ==
    /\ Uses(t) /\ Lives(t)
    /\ LET states == [state EXCEPT ![t] = "left"] IN
       IF holder = t \/ Free THEN HandOver(states, Without(t, queue), beat)
       ELSE queue' = Without(t, queue) /\ state' = states /\ UNCHANGED <<holder, ends, beat, ordered>>
    /\ since' = now /\ UNCHANGED <<now, dead>>

Die(t) ==
    /\ Uses(t) /\ Lives(t) /\ dead' = dead \cup {t} /\ since' = now
    /\ UNCHANGED <<now, holder, ends, queue, beat, state, ordered>>

Next == Tick \/ \E t \in Tickets : Claim(t) \/ Stay(t) \/ Renew(t) \/ Leave(t) \/ Die(t)
Spec == Init /\ [][Next]_vars

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

Ordered == ordered
OneHolder == \A t \in Tickets : Lives(t) /\ state[t] = "holds" => holder = t /\ now < ends
NobodyLost == \A t \in Tickets : Lives(t) /\ state[t] = "waits" => \E i \in 1..Len(queue) : queue[i] = t
(* Whatever died in front: without a living holder the living wait for two leases and one renewal at most. One lease for
   the holder that died; one more if a waiter that died was handed the name before its place was given up. There is no
   third: places of all that died by then are given up when the lease of that one ends. *)
Bounded ==
    (\E t \in Tickets : Lives(t) /\ state[t] = "waits") /\ ~(holder # None /\ Lives(holder) /\ now < ends)
        => now <= since + 2 * Lease + Every
==============================================================================

-------------------------------- MODULE Wakeup -------------------------------
(* How one waiter learns that it holds, or that it may claim again, when messages get lost.

   It models Attempt.run in src/leasehold/_engine/acquire.py (claim, wait, claim again); the wait of
   src/leasehold/stores/redis/{store,handover}.py (subscribe, claim again if the subscription is not the one under which the
   claim was sent, then sleep); the renewals of src/leasehold/_engine/watchdog/watchdog.py with renew_waiters.lua; and
   hand_over in src/leasehold/stores/redis/scripts/queue.lua.

   Modelled:
   - Others hold the name one after the other, a bounded number of times. Each releases, or dies and its lease expires.
   - A release grants the name to our waiter if that has a queue entry, and publishes if it knows the channel. The message
     arrives only if our waiter is subscribed at that moment, and may be lost even so.
   - The subscription may break, a bounded number of times.
   - Replies get lost, too. Then the request is sent again, so a lost reply is only a delay, and is not modelled.
   - A queue entry and a grant that are not renewed expire.

   Four ways wake the waiter: the message; the claim that is repeated when the subscription is new (Recheck); the renewal of
   its entry, which finds the grant (Renewal); the timer at the expiry of the lease that it found (Timer).

   Left out: time, tokens, other waiters (see Queue). The claim joins a fair queue.                                       *)
EXTENDS Naturals

CONSTANTS
    Others,                  \* how often another client acquires the name
    Drops,                   \* how often the subscription breaks
    Lossy,                   \* a message may be lost although the waiter is subscribed
    Recheck, Renewal, Timer  \* the ways that are switched on

VARIABLES
    holder,               \* "nobody", "other", "dead" (another that died), "me"
    entry,                \* our waiter has a queue entry
    channel,              \* the waiter's channel as the entry names it: "open" or "closed"
    subscribed,           \* our waiter is subscribed
    generation, claimed,  \* the number of its subscription, and that number at the last claim
    message,              \* a message about the present grant has arrived
    pc,                   \* "claim", "subscribe", "sleep", "holds"
    others, drops

server == <<holder, entry, channel>>
vars == <<holder, entry, channel, subscribed, generation, claimed, message, pc, others, drops>>

Init ==
    /\ holder = "other" /\ entry = FALSE /\ channel = "closed" /\ subscribed = FALSE /\ generation = 0 /\ claimed = 0
    /\ message = FALSE /\ pc = "claim" /\ others = Others /\ drops = Drops

(* --- the waiter ---------------------------------------------------------------------------------------------------- *)

Claim ==                 \* if the name is free or was granted to it, it holds; else it has a queue entry with its channel
    /\ pc = "claim" /\ claimed' = generation
    /\ IF holder \in {"me", "nobody"}
       THEN holder' = "me" /\ entry' = FALSE /\ pc' = "holds" /\ UNCHANGED channel
       ELSE entry' = TRUE /\ pc' = "subscribe" /\ channel' = (IF subscribed THEN "open" ELSE "closed") /\ UNCHANGED holder
    /\ message' = FALSE  \* an earlier message was about a grant that has ended
    /\ UNCHANGED <<subscribed, generation, others, drops>>

Subscribe ==        \* subscribes if it is not subscribed; a new subscription has a new number
    /\ pc = "subscribe"
    /\ subscribed' = TRUE /\ generation' = IF subscribed THEN generation ELSE generation + 1
    /\ pc' = IF Recheck /\ generation' # claimed THEN "claim" ELSE "sleep"
    /\ UNCHANGED <<server, claimed, message, others, drops>>

ReadMessage == pc = "sleep" /\ message /\ pc' = (IF holder = "me" THEN "holds" ELSE "claim") /\ message' = FALSE
        /\ UNCHANGED <<server, subscribed, generation, claimed, others, drops>>

TimerFires ==       \* the lease that the last claim found would have expired by now
    /\ Timer /\ pc = "sleep" /\ pc' = "claim"
    /\ UNCHANGED <<server, subscribed, generation, claimed, message, others, drops>>

\* the watchdog renews the entry: it finds the grant, or acquires a free name, or finds that the entry is gone
RenewEntry ==
    /\ Renewal /\ pc \in {"subscribe", "sleep"}
    /\ IF holder = "me" \/ (holder = "nobody" /\ entry)
       THEN holder' = "me" /\ entry' = FALSE /\ pc' = "holds"
       ELSE ~entry /\ pc' = "claim" /\ UNCHANGED <<holder, entry>>
    /\ UNCHANGED <<channel, subscribed, generation, claimed, message, others, drops>>

SubscriptionBreaks ==  \* its connection is lost, with the messages on it; the client notices that, and wakes the waiter
    /\ subscribed /\ drops > 0 /\ drops' = drops - 1 /\ subscribed' = FALSE /\ message' = FALSE
    /\ pc' = IF Recheck /\ pc = "sleep" THEN "claim" ELSE pc
    /\ UNCHANGED <<server, generation, claimed, others>>

(* --- the server and the others ------------------------------------------------------------------------------------- *)

HandOver ==         \* hand_over: to the first waiter, if it can be notified or is about to claim
    IF entry
    THEN /\ holder' = "me" /\ entry' = FALSE
         /\ IF channel = "open" /\ subscribed THEN message' \in (IF Lossy THEN {TRUE, FALSE} ELSE {TRUE}) ELSE UNCHANGED message
    ELSE holder' = "nobody" /\ UNCHANGED <<entry, message>>

OtherReleases == holder = "other" /\ HandOver /\ UNCHANGED <<channel, subscribed, generation, claimed, pc, others, drops>>

OtherDies ==
    /\ holder = "other" /\ holder' = "dead"
    /\ UNCHANGED <<entry, channel, subscribed, generation, claimed, message, pc, others, drops>>

LeaseExpires ==     \* of a holder that died; and of a grant that nobody knows of and nobody renews
    /\ holder = "dead" \/ (holder = "me" /\ pc # "holds" /\ ~Renewal)
    /\ holder' = "nobody" /\ message' = FALSE
    /\ UNCHANGED <<entry, channel, subscribed, generation, claimed, pc, others, drops>>

EntryExpires ==
    /\ entry /\ ~Renewal /\ entry' = FALSE
    /\ UNCHANGED <<holder, channel, subscribed, generation, claimed, message, pc, others, drops>>

OtherAcquires ==
    /\ holder = "nobody" /\ ~entry /\ others > 0
    /\ others' = others - 1 /\ holder' = "other"
    /\ UNCHANGED <<entry, channel, subscribed, generation, claimed, message, pc, drops>>

Next ==
    \/ Claim \/ Subscribe \/ ReadMessage \/ TimerFires \/ RenewEntry \/ SubscriptionBreaks
    \/ OtherReleases \/ OtherDies \/ LeaseExpires \/ EntryExpires \/ OtherAcquires

(* A holder releases or dies at some time; each way that is switched on works at some time. No message has to be lost, no
   entry to expire, and no subscription to break. *)
Spec ==
    /\ Init /\ [][Next]_vars
    /\ WF_vars(Claim) /\ WF_vars(Subscribe) /\ WF_vars(ReadMessage) /\ WF_vars(TimerFires) /\ WF_vars(RenewEntry)
    /\ WF_vars(OtherReleases \/ OtherDies) /\ WF_vars(holder = "dead" /\ LeaseExpires)

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

HoldsInTheEnd == <>(pc = "holds")
Sound == pc = "holds" => holder = "me"
==============================================================================

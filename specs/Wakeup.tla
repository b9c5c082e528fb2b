-------------------------------- MODULE Wakeup -------------------------------
(* How one waiter hears that it holds, or that it may ask again, when messages get lost.

   What it stands for: Attempt.run in src/leasehold/_engine/acquire.py (claim, wait, claim again), `changed` of
   src/leasehold/stores/redis/store.py (listen, ask again if the subscription is not the one that the claim was made under,
   then sleep), the renewals of src/leasehold/_engine/watchdog/watchdog.py with stay.lua, and tell/hand_over in
   src/leasehold/stores/redis/scripts/common.lua.

   Modelled. Others hold the name one after the other, a bounded number of times; each leaves, or dies and its lease ends.
   A leave hands the name to our waiter if that has a place, and publishes if the channel is known; the message arrives
   only where somebody listens at that moment, and may be lost even so. The subscription may break, a bounded number of
   times. Replies get lost, too; then the request is sent again, so a lost reply is only delay, and is not modelled.
   A place and a grant that are not renewed end some time. Four ways lead to the waiter: the message; the claim that
   is repeated when the subscription is new (Recheck); the renewal of its place, which finds the grant (Renewal); the timer
   at the expiry of whoever held when it asked (Timer).

   Left out: time, tokens, other waiters (see Queue). The claim is joined and fair.                                       *)
EXTENDS Naturals

CONSTANTS
    Others,         \* how often somebody else takes the name
    Drops,          \* how often the subscription breaks
    Lossy,          \* a message may be lost although somebody listens
    Recheck, Renewal, Timer     \* the ways that are switched on

VARIABLES
    who,            \* "nobody", "other", "dead" (an other that died), "me"
    place,          \* our waiter has a place
    told,           \* the channel that the server has of it: "open" or "closed"
    listens,        \* it is subscribed
    epoch, mark,    \* the number of its subscription, and which it was at the last claim
    inbox,          \* a message of the present grant has arrived
    pc,             \* "claim", "listen", "sleep", "holds"
    others, drops

server == <<who, place, told>>
vars == <<who, place, told, listens, epoch, mark, inbox, pc, others, drops>>

Init ==
    /\ who = "other" /\ place = FALSE /\ told = "closed" /\ listens = FALSE /\ epoch = 0 /\ mark = 0
    /\ inbox = FALSE /\ pc = "claim" /\ others = Others /\ drops = Drops

(* --- the waiter ---------------------------------------------------------------------------------------------------- *)

Claim ==            \* free, or given to it meanwhile: it holds; else it has a place, and the server knows its channel
    /\ pc = "claim" /\ mark' = epoch
    /\ IF who \in {"me", "nobody"}
       THEN who' = "me" /\ place' = FALSE /\ pc' = "holds" /\ UNCHANGED told
       ELSE place' = TRUE /\ pc' = "listen" /\ told' = (IF listens THEN "open" ELSE "closed") /\ UNCHANGED who
    /\ inbox' = FALSE                       \* what was told before this answer is of a grant that is over
    /\ UNCHANGED <<listens, epoch, others, drops>>

Listen ==           \* subscribe, if need be; a new subscription is of a new number
    /\ pc = "listen"
    /\ listens' = TRUE /\ epoch' = IF listens THEN epoch ELSE epoch + 1
    /\ pc' = IF Recheck /\ epoch' # mark THEN "claim" ELSE "sleep"
    /\ UNCHANGED <<server, mark, inbox, others, drops>>

Told == pc = "sleep" /\ inbox /\ pc' = (IF who = "me" THEN "holds" ELSE "claim") /\ inbox' = FALSE
        /\ UNCHANGED <<server, listens, epoch, mark, others, drops>>

Ring ==             \* whoever held when it asked would be gone by now
    /\ Timer /\ pc = "sleep" /\ pc' = "claim"
    /\ UNCHANGED <<server, listens, epoch, mark, inbox, others, drops>>

Stay ==             \* the keeper renews the place: it finds the grant, or makes it if the name is free, or that the place is gone
    /\ Renewal /\ pc \in {"listen", "sleep"}
    /\ IF who = "me" \/ (who = "nobody" /\ place)
       THEN who' = "me" /\ place' = FALSE /\ pc' = "holds"
       ELSE ~place /\ pc' = "claim" /\ UNCHANGED <<who, place>>
    /\ UNCHANGED <<told, listens, epoch, mark, inbox, others, drops>>

Break ==            \* the connection for messages is lost, with what was under way; the client sees it, and wakes up
    /\ listens /\ drops > 0 /\ drops' = drops - 1 /\ listens' = FALSE /\ inbox' = FALSE
    /\ pc' = IF Recheck /\ pc = "sleep" THEN "claim" ELSE pc
    /\ UNCHANGED <<server, epoch, mark, others>>

(* --- the server and the others ------------------------------------------------------------------------------------- *)

HandOver ==         \* what hand_over does: to the first who waits, if it can be told or is about to ask
    IF place
    THEN /\ who' = "me" /\ place' = FALSE
         /\ IF told = "open" /\ listens THEN inbox' \in (IF Lossy THEN {TRUE, FALSE} ELSE {TRUE}) ELSE UNCHANGED inbox
    ELSE who' = "nobody" /\ UNCHANGED <<place, inbox>>

OtherLeaves == who = "other" /\ HandOver /\ UNCHANGED <<told, listens, epoch, mark, pc, others, drops>>

OtherDies == who = "other" /\ who' = "dead" /\ UNCHANGED <<place, told, listens, epoch, mark, inbox, pc, others, drops>>

LeaseEnds ==        \* of one that died; and of a grant that nobody heard of and nobody renews
    /\ who = "dead" \/ (who = "me" /\ pc # "holds" /\ ~Renewal)
    /\ who' = "nobody" /\ inbox' = FALSE /\ UNCHANGED <<place, told, listens, epoch, mark, pc, others, drops>>

PlaceEnds == place /\ ~Renewal /\ place' = FALSE /\ UNCHANGED <<who, told, listens, epoch, mark, inbox, pc, others, drops>>

OtherTakes ==
    /\ who = "nobody" /\ ~place /\ others > 0
    /\ others' = others - 1 /\ who' = "other" /\ UNCHANGED <<place, told, listens, epoch, mark, inbox, pc, drops>>

Next == Claim \/ Listen \/ Told \/ Ring \/ Stay \/ Break \/ OtherLeaves \/ OtherDies \/ LeaseEnds \/ PlaceEnds \/ OtherTakes

(* Whoever holds leaves or dies some time; each way that is on works some time. Nothing must be lost, end, or break. *)
Spec == Init /\ [][Next]_vars /\ WF_vars(Claim) /\ WF_vars(Listen) /\ WF_vars(Told) /\ WF_vars(Ring) /\ WF_vars(Stay)
             /\ WF_vars(OtherLeaves \/ OtherDies) /\ WF_vars(who = "dead" /\ LeaseEnds)

(* --- what must hold ------------------------------------------------------------------------------------------------ *)

HoldsInTheEnd == <>(pc = "holds")
Sound == pc = "holds" => who = "me"
==============================================================================

"""Views of each kind: each takes the lock, and answers with the process id and the token."""

import os

from asgiref.sync import sync_to_async
from django.http import JsonResponse

from leasehold.integrations.django import alocks, locks


def answer(hold):
    return JsonResponse({"pid": os.getpid(), "token": hold.token, "held": hold.held})


def sell(request):
    with locks.lock("order:1", timeout=10) as hold:
        return answer(hold)


async def asell(request):
    async with alocks.lock("order:1", timeout=10) as hold:
        return answer(hold)


async def bridged(request):
    return await sync_to_async(sell)(request)

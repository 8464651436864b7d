"""Requests to the endpoints of a test's own urls, as WSGI and as ASGI answer them."""

import json

from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client


def over_wsgi(url, user, message="hi"):
    """Return the status and the whole body of the answer to a user's message."""
    client = Client()
    client.force_login(user)
    response = client.post(url, json.dumps({"message": message}), "application/json")
    body = b"".join(response) if response.streaming else response.content
    return response.status_code, body.decode()


def over_asgi(url, user, message="hi"):
    async def ask():
        client = AsyncClient()
        await client.aforce_login(user)
        response = await client.post(url, json.dumps({"message": message}), "application/json")
        if not response.streaming:
            return response.status_code, response.content
        return response.status_code, b"".join([part async for part in response.streaming_content])

    status, body = async_to_sync(ask)()
    return status, body.decode()

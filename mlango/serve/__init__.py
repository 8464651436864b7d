"""Agents over HTTP: the views behind ``as_endpoint()`` and ``as_stream_endpoint()``."""

from django.urls import include, path

__all__ = ["include", "path"]

"""Fields of an agent: class attributes that become arguments of its constructor.

They are Django's form fields with a ``default``; a field without one must be given.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from mlango.core.options import UNSET
from mlango.exceptions import Misused


class AgentField(forms.Field):
    """What all fields share. ``default`` may be a callable without arguments."""

    default: Any = UNSET

    def __init__(self, *args: Any, default: Any = UNSET, **kwargs: Any) -> None:
        kwargs.setdefault("required", default is UNSET)
        super().__init__(*args, **kwargs)
        self.default = default

    def get_default(self) -> Any:
        return self.default() if callable(self.default) else self.default

    def value_for(self, owner: str, name: str, value: Any) -> Any:
        """Return the value as the field understands it; raise Misused if it does not."""
        if value is None and not self.required:
            return None
        try:
            return self.clean(value)
        except ValidationError as error:
            raise Misused(f"{owner}({name}={value!r}): {' '.join(error.messages)}") from None


class CharField(AgentField, forms.CharField):
    """A text."""


class TextField(CharField):
    """A long text."""

    widget = forms.Textarea


class ChoiceField(AgentField, forms.ChoiceField):
    """One of ``choices``: values, or Django's pairs of value and label."""

    def __init__(self, choices: Any = (), **kwargs: Any) -> None:
        pairs = [choice if isinstance(choice, tuple) else (choice, choice) for choice in choices]
        super().__init__(choices=pairs, **kwargs)


class IntegerField(AgentField, forms.IntegerField):
    """A whole number; ``min_value`` and ``max_value`` bound it."""


class FloatField(AgentField, forms.FloatField):
    """A number; ``min_value`` and ``max_value`` bound it."""


class DecimalField(AgentField, forms.DecimalField):
    """An exact decimal number."""


class BooleanField(AgentField, forms.BooleanField):
    """True or False; False is a value like any other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"required": False, "default": False} | kwargs)


class DateField(AgentField, forms.DateField):
    """A date."""


class DateTimeField(AgentField, forms.DateTimeField):
    """A date and time."""


class DurationField(AgentField, forms.DurationField):
    """A length of time."""


class UUIDField(AgentField, forms.UUIDField):
    """A UUID."""


class EmailField(AgentField, forms.EmailField):
    """An e-mail address."""


class URLField(AgentField, forms.URLField):
    """A URL."""


class RegexField(AgentField, forms.RegexField):
    """A text of a pattern."""


class JSONField(AgentField):
    """Any value that JSON can hold, as it is."""

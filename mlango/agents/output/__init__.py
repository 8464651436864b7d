"""Structured output: an agent whose answers are values of a type, a form or a serializer."""

from mlango.agents.output.control import AnswerTool, Structured
from mlango.agents.output.kinds import Invalid, OutputType
from mlango.agents.output.select import output_type

__all__ = ["AnswerTool", "Invalid", "OutputType", "Structured", "output_type"]

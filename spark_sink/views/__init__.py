"""Typed views of models: tables with a model's fields as columns.

In reading order:

    keeping        creates views, fills them, and lets them follow `stream_states`
    model_columns  a model's JSON Schema as columns, and content as their values; pure
"""

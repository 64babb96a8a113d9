"""Pictures of graphs: their layout in rows and lanes, as lines of text and as SVG.

Nothing here knows what it draws: `streams`, `tangles` and `dag` make the `Picture`s.
"""

"""Pictures of graphs: their layout in rows and lanes, as lines of text and as SVG.

Nothing here knows what it draws: `streams`, `tangles` and `dag` make a `Picture` of what they have.
"""

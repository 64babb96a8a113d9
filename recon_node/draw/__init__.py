"""Pictures of graphs: their layout in rows and lanes, as lines of text and as SVG.

Nothing here knows what it draws: `streams`, `tangles` and `dag` make the `Picture`s.

layout  nodes in rows and lanes
text    lines of text
svg     one SVG file
"""

"""Tangles: messages of many authors in one order (SIP "Tangles"), and feeds of Secure Scuttlebutt.

tangle        which messages belong to a tangle, and their order
documents     tangles over Ceramic documents
index         the documents of a node that take part in tangles
classic_feed  the other recipe of the SIP: the feed of one author
pictures      both, drawn
"""

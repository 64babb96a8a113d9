"""What all packages stand on, in reading order; each is of use without the others.

program             signals, and no garbage collection for a while
files               locks, and files that are replaced in one durable step
connection          the connection to a node's HTTP API, and its errors
bodies              bodies of anybody's HTTP answers
setting_types       how packages declare their settings
terminal            how both commands print text and JSON, and select a node
timestamps          times as people write them
timing              histograms of how long things take, and spans of OpenTelemetry
latest              bounded maps
chunks              items divided into chunks of bounded size
steps               generators, run to their end
errors              why something failed, in words; the error that represents an exception group
"""

"""Who is there: the peer book, its file, and discovery through the DHT."""

"""The peers: their book, their interests, and discovery through the DHT."""

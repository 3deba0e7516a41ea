"""From raw Chinese text to instance shards and a catalog of them. Knows no torch."""

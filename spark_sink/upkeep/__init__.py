"""Maintaining the tables: `maintenance` sorts, vacuums and rebuilds them; `health` checks them."""

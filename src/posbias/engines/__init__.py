"""What runs the SQL of a harvest."""

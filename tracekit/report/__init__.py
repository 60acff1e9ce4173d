"""What people read: text of at most 80 columns, pure functions from data to text."""

"""What a run's files hold: the chain of lines, the header, decisions and calls as JSON, and a decision taken again."""

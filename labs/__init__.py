"""Labs: functions of the engine with their bodies removed, and the judge of what you write."""

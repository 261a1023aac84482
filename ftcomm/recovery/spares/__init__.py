"""Workers without a rank: what they hold before they get one."""

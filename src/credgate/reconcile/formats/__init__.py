"""One module a target or a family of them, from the targets' own documentation; each turns one record into Events.

A parser takes what it doesn't know without a word and raises Unreadable for what it needs and doesn't get. It returns
no Event for a record that no API call made.
"""

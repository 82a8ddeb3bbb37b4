package main

const (
	shellState  = "cursor 1 page 0 wrap 1"
	screenState = "cursor 0 page 1 wrap 1"
)

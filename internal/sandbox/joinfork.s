// Empty: with a file of assembly the compiler takes declarations without bodies, as in joinfork.go.

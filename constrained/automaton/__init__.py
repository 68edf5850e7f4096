"""The lazy byte automaton, the token trie, masks and matchers."""

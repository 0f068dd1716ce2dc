echo "hello${APP_VERBOSE:+, and more}"

import os

print("hello" + (", and more" if os.environ.get("APP_VERBOSE") else ""))

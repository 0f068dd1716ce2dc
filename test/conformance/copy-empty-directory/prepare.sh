mkdir -p empty nested/empty

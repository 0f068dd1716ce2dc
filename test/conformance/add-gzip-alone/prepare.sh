gzip -n file

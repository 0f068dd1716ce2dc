# build.py OUTPUT RECIPE...: builds packages with rattler-build and prints the paths of the archives.
import os
import sys

from rattler_build import Stage0Recipe

output, recipes = sys.argv[1], sys.argv[2:]
for text in recipes:
    for variant in Stage0Recipe.from_yaml(text).render():
        for path in variant.run_build(output_dir=output, channels=[]).packages:
            print(path)
sys.stdout.flush()
os._exit(0)

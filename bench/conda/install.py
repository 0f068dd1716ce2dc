"""install.py CHANNEL SUBDIR PREFIX TARGET CACHE NAME...: rattler solves, and installs into TARGET what is meant for PREFIX."""

import asyncio
import os
import sys

from rattler import Channel, Client, Gateway, GenericVirtualPackage, MatchSpec, PackageName, Version, install, solve
from rattler.package import BuildString


async def main(channel, subdir, prefix, target, cache, *names):
    client = Client.default_client()
    gateway = Gateway(cache_dir=cache + "/repodata", client=client)
    virtual = [GenericVirtualPackage(PackageName(n), Version(v), BuildString("0")) for n, v in (("__unix", "0"), ("__linux", "5.10"), ("__glibc", "2.36"))]
    records = await solve([Channel(channel)], [MatchSpec(n) for n in names], gateway=gateway, platforms=[subdir, "noarch"], virtual_packages=virtual)
    await install(records, target, cache_dir=cache + "/pkgs", client=client, show_progress=False, alternative_target_prefix=prefix)


asyncio.run(main(*sys.argv[1:]))
sys.stdout.flush()
os._exit(0)  # rattler may crash when the interpreter ends

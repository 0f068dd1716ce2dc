# install.py CHANNEL SUBDIR PREFIX TARGET CACHE SPEC...: solves and installs with rattler into TARGET what is meant for PREFIX.
# Without arguments, each line of its input has them, as a list in JSON; "done" is printed behind the answer.
import asyncio
import json
import os
import sys

from rattler import Channel, ChannelPriority, Client, Gateway, GenericVirtualPackage, MatchSpec, PackageName, SourceConfig, Version, install, solve
from rattler.package import BuildString


async def main(channel, subdir, prefix, target, cache, *specs):
    client = Client.default_client(max_retries=2)
    gateway = Gateway(cache_dir=cache + "/repodata", client=client, default_config=SourceConfig(sharded_enabled=True))
    virtual = [GenericVirtualPackage(PackageName(n), Version(v), BuildString("0")) for n, v in (("__unix", "0"), ("__linux", "5.10"), ("__glibc", "2.36"))]
    records = await solve(
        [Channel(channel)], [MatchSpec(s) for s in specs], gateway=gateway, platforms=[subdir, "noarch"],
        virtual_packages=virtual, channel_priority=ChannelPriority.Flexible,
    )
    for r in records:
        print(r.url)
    if target:
        await install(records, target, cache_dir=cache + "/pkgs", client=client, show_progress=False, alternative_target_prefix=prefix, execute_link_scripts=False)


if sys.argv[1:]:
    asyncio.run(main(*sys.argv[1:]))
else:
    for line in sys.stdin:
        asyncio.run(main(*json.loads(line)))
        print("done", flush=True)
sys.stdout.flush()
os._exit(0)  # rattler may crash when the interpreter ends

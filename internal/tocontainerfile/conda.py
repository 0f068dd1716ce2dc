# PREFIX PLATFORM with-link-scripts|without-link-scripts: lays down just these packages, if their channels still have them.
import asyncio, os, sys
from rattler import Channel, Client, Gateway, install

PACKAGES = """
# THE PACKAGES
"""
WANTED = dict(line.rsplit("#", 1) for line in PACKAGES.split())


async def main(prefix, platform, scripts):
    client = Client.default_client()
    channels = [Channel(c) for c in sorted({url.rsplit("/", 2)[0] for url in WANTED})]
    names = sorted({url.rsplit("/", 1)[1].rsplit("-", 2)[0].lower() for url in WANTED})
    found = await Gateway(client=client).query(channels, [platform, "noarch"], names, recursive=False)
    records = [r for some in found for r in some if r.sha256 and WANTED.get(str(r.url)) == r.sha256.hex()]
    gone = sorted(set(WANTED) - {str(r.url) for r in records})
    if gone:
        sys.exit("the channels do not have these, or with other hashes: " + " ".join(gone))
    await install(records, prefix, client=client, show_progress=False, execute_link_scripts=scripts == "with-link-scripts")


asyncio.run(main(*sys.argv[1:]))
os._exit(0)  # at an ordinary end, the library sometimes crashes

#!/bin/sh
# Example for `[provider] command`: requests become files in a folder, from which people or another program take them.
# Planned maintenance is read from events.json there, as docs/provider.md has it. Nothing else is needed but sh and sed.
set -eu
# The shipped unit lets it write only below the state directory, which systemd names.
folder=${PROVIDER_FOLDER:-${STATE_DIRECTORY:-/var/lib/understudy}/provider}
mkdir -p "$folder"
request=$(cat)
case $request in
'{"version":1,"ask":"events",'*)
    if [ -e "$folder/events.json" ]; then cat "$folder/events.json"; else echo '{}'; fi
    ;;
*)
    id=$(printf '%s\n' "$request" | sed -n 's/^{"version":1,"ask":"[a-z]*","id":"\([A-Za-z0-9._ -]*\)",.*/\1/p')
    [ -n "$id" ] || { echo "no id that can be a file's name"; exit 1; }
    # The same id again is the same request. It appears whole, or not at all.
    printf '%s\n' "$request" >"$folder/.$id.$$"
    mv "$folder/.$id.$$" "$folder/$id.json"
    printf '{"ticket":"%s","summary":"written to %s"}\n' "$id" "$folder"
    ;;
esac

#!/bin/sh
# Example for `[provider] command`: sends each question to a web service (POST), which answers with the other document.
#   command = "/etc/understudy/provider-rest.sh https://provider.example/nodes /etc/understudy/provider.header"
# The second file has the line "Authorization: Bearer TOKEN", and is closed to other users. It needs curl 7.76.
set -eu
exec curl -q --silent --show-error --fail-with-body --header 'Content-Type: application/json' --header "@$2" \
    --data-binary @- "$1"

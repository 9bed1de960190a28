#!/bin/sh
# Start nginx in front of REPLICAS: names and ports, separated by blanks. Each name leads to one replica.
set -eu
here=$(dirname "$0")
case ${REPLICAS:=} in
    '' | ' ' | *[!A-Za-z0-9.:_\ \[\]-]*)
        echo "REPLICAS is '$REPLICAS': it must be like 'tensortap-1:8000 tensortap-2:8000'" >&2
        exit 2
        ;;
esac
mkdir -p /run/nginx
rm -f /run/nginx/slices.sock  # of an nginx that was killed: the next one could not listen
version=$(nginx -v 2>&1 | sed 's#.*nginx/\([0-9.]*\).*#\1#')
# From 1.27.3 on, nginx asks again where a name leads, and starts before the replicas. An older one knows the addresses
# of its start: restart it when containers were made anew. It asks whom the system asks first (the name servers of Docker
# and Podman are at different addresses); of several it would ask each in turn, and others need not know the names.
resolve=
if [ "$(printf '%s\n1.27.3\n' "$version" | sort -V | head -n 1)" = 1.27.3 ]; then
    resolve=' resolve'
    awk '
        address == "" && $1 == "nameserver" && $2 !~ /%/ { address = $2 ~ /:/ ? "[" $2 "]" : $2 }
        END { print "resolver " (address == "" ? "127.0.0.1" : address) " valid=5s;" }
    ' /etc/resolv.conf
fi >/run/nginx/replicas.conf
awk -v replicas="$REPLICAS" -v resolve="$resolve" '
    /^ *server 127\.0\.0\.1:8001 / {
        count = split(replicas, names, " ")
        for (number = 1; number <= count; number++) {
            line = $0
            sub(/127\.0\.0\.1:8001/, names[number], line)
            sub(/;$/, resolve ";", line)
            print line
        }
    }
    !/^ *server 127\.0\.0\.1:/
' "$here/replicas.conf" >>/run/nginx/replicas.conf
exec nginx -c "$here/nginx.conf" -g 'daemon off;'

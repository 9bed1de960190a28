#!/usr/bin/env bash
# Builds the image twice, and shows that both are the same; counts what is in it with syft, if that is there; then runs it
# as hard as a host may: a root that is read-only, a user who owns nothing, no capabilities, no new privileges, 512 MiB,
# half a core, 64 processes. Eight clients pull a whole tensor at a time and eight post a million rows each, and SIGTERM
# ends it. Needs docker, curl and python3, and a folder of models with MODEL and its TENSOR.
#
#   deploy/image.sh [MODELS]        environment: PYTHON_IMAGE, MODEL (demo), TENSOR (token_embd.weight), PORT (18000),
#                                   OUT (the folder for the SBOM: a temporary one), DOCKER (docker)
set -euo pipefail
cd "$(dirname "$0")/.."
models=$(realpath "${1:-models}")
base=${PYTHON_IMAGE:-python:3.13-slim} model=${MODEL:-demo} tensor=${TENSOR:-token_embd.weight} port=${PORT:-18000}
docker=${DOCKER:-docker}
out=${OUT:-$(mktemp -d)}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
image=tensortap:$version name=tensortap-hard-$$
say() { printf '== %s\n' "$*"; }

say "two builds without a cache"
for tag in "$image" "$image-again"; do
    "$docker" build --quiet --no-cache --build-arg PYTHON_IMAGE="$base" --build-arg VERSION="$version" \
        --build-arg REVISION="$revision" --tag "$tag" . >"$out/build.log" 2>&1 || { tail -n 30 "$out/build.log"; exit 1; }
    "$docker" image inspect --format '{{range .RootFS.Layers}}{{println .}}{{end}}' "$tag" | tee "$out/layers-${tag##*:}"
done
cmp "$out/layers-$version" "$out/layers-$version-again"
"$docker" rmi "$image-again" >/dev/null
"$docker" image inspect --format '{{.Size}} bytes, user {{.Config.User}}' "$image"
"$docker" history --format '{{.Size}} {{.CreatedBy}}' "$image" | cut -c1-100
"$docker" image inspect --format '{{range $name, $value := .Config.Labels}}{{println $name $value}}{{end}}' "$image"

if command -v syft >/dev/null; then
    say "the SBOM: $out/sbom.cdx.json"
    "$docker" save --output "$out/image.tar" "$image"
    syft scan --quiet --output "cyclonedx-json=$out/sbom.cdx.json" "docker-archive:$out/image.tar"
    rm "$out/image.tar"
    python3 - "$out/sbom.cdx.json" <<'PYTHON'
import collections, json, sys
parts = json.load(open(sys.argv[1]))["components"]
kinds = collections.Counter(part.get("purl", part["type"]).partition("/")[0] for part in parts if part["type"] != "file")
print(*(f"{count} {kind}" for kind, count in kinds.most_common()), sep="\n")
PYTHON
fi

say "a hard run"
trap '"$docker" rm --force "$name" >/dev/null 2>&1' EXIT
"$docker" run --detach --name "$name" --publish "127.0.0.1:$port:8000" --volume "$models:/models:ro" \
    --read-only --tmpfs /tmp:size=16m,noexec,nosuid,nodev --user 54321:54321 --cap-drop ALL \
    --security-opt no-new-privileges --memory 512m --memory-swap 512m --cpus 0.5 --pids-limit 64 \
    --ulimit nofile=4096 "$image" >/dev/null
for _ in $(seq 120); do
    health=$("$docker" inspect --format '{{.State.Health.Status}}' "$name")
    [ "$health" = starting ] || break
    sleep 0.5
done
[ "$health" = healthy ] || { "$docker" logs "$name"; exit 1; }
echo "healthy"
"$docker" exec "$name" python -m app settings | grep -A 2 -E 'CACHE_BYTES|DECODE_THREADS'

url=http://127.0.0.1:$port/v1/models/$model/-
expected=$(curl -fsS -o /dev/null -w '%{size_download} %{http_code}' "$url/data/$tensor")
python3 -c 'import json; print(json.dumps({"rows": [0] * 1_000_000, "cols": 0}))' >"$out/rows.json"
load() { # NUMBER: requests that fail or answer something else are said
    for _ in 1 2 3 4; do
        answer=$(curl -fsS -o /dev/null -w '%{size_download} %{http_code}' "$url/data/$tensor")
        [ "$answer" = "$expected" ] || echo "client $1: $answer instead of $expected"
    done
}
post() { # busy is an answer: all that is sent at a time must not take more memory than there is
    curl -sS -o /dev/null -w 'post: %{http_code}, %{size_download} bytes\n' -H 'Content-Type: application/json' \
        --retry 20 --retry-delay 1 --data-binary "@$out/rows.json" "$url/data/$tensor"
}
clients=()
for number in 1 2 3 4 5 6 7 8; do
    load "$number" >>"$out/failures" 2>&1 &
    clients+=($!)
    post >>"$out/posts" 2>&1 &
    clients+=($!)
done
wait "${clients[@]}"
sort "$out/posts" | uniq -c
[ ! -s "$out/failures" ] || { cat "$out/failures"; exit 1; }
echo "32 answers of $expected, whole"
"$docker" stats --no-stream --format 'memory {{.MemUsage}}, processes and threads {{.PIDs}}' "$name"
"$docker" exec "$name" python -c 'import re; print("most of the process itself:", *re.findall(r"VmHWM:\s*(.*)", open("/proc/1/status").read()))'

curl -sS -o /dev/null "$url/data/$tensor" --limit-rate 20M --write-out 'read %{size_download} bytes\n' >"$out/last" 2>&1 &
client=$!
sleep 0.5
"$docker" stop --time 10 "$name" >/dev/null
wait "$client" || true
state=$("$docker" inspect --format '{{.State.ExitCode}} {{.State.OOMKilled}}' "$name")
echo "exit code, out of memory: $state"
[ "$state" = "0 false" ]
# What docker's own proxy for published ports still holds ends with the container: the client may have less.
echo "an answer that ran when SIGTERM came:" \
    "$("$docker" logs "$name" 2>&1 | grep tensortap.access | tail -n 1 | grep -o -E 'bytes_sent=[0-9]+ outcome=[a-z]+')," \
    "the client $(tail -n 1 "$out/last")"

#!/usr/bin/env bash
# verify-ledger.sh DIR PUBKEY.pem: what `credgate log verify` says, found without Credgate: bash, coreutils, awk, openssl.
# Exit 0 sound, 1 tampered, 2 truncated, 3 incomplete, 4 can't tell. For a ledger from its first segment on, of one key.
# shellcheck disable=SC2001,SC2015
set -uo pipefail
export LC_ALL=C
dir=$1 key=$2 tmp=$(mktemp -d) n=0 i=1 line='' last='' prev=$(printf '0%.0s' {1..64}) tree=()
trap 'rm -rf "$tmp"' EXIT
end() { echo "$2 (line $n)" && exit "$1"; }
sha() { sha256sum | cut -c1-64; }
unhex() { printf '%b' "$(sed 's/../\\x&/g' <<<"$1")"; }
node() { { printf '\1' && unhex "$1$2"; } | sha; }
root() { # RFC 6962: complete subtrees, folded from the right
    local r=${tree[-1]} k
    for ((k = ${#tree[@]} - 2; k >= 0; k--)); do r=$(node "${tree[k]}" "$r"); done
    unhex "$r" | base64
}
note() { # note number $i is of exactly these lines: its name, root and signature (C2SP signed-note, Ed25519)
    local name b64 id && read -r _ name b64 2>"$tmp/err" <"$tmp/sig.$i" || end 3 "torn checkpoint"
    base64 -d <<<"$b64" >"$tmp/raw" 2>"$tmp/err" && [ "$(base64 -w0 "$tmp/raw")" = "$b64" ] || end 1 "damaged checkpoint"
    id=$({ printf '%s\n\1' "$name" && tail -c 32 "$tmp/der"; } | sha)
    [ "$(head -c 4 "$tmp/raw" | od -An -tx1 | tr -d ' ')" = "${id:0:8}" ] && tail -c +5 "$tmp/raw" >"$tmp/ed" &&
        [ "$name ${text[0]}" = "$origin $origin" ] && [ "${text[2]}" = "$(root)" ] && openssl pkeyutl -verify -pubin \
        -inkey "$key" -rawin -in "$tmp/text.$i" -sigfile "$tmp/ed" >"$tmp/err" 2>&1 || end 1 "checkpoint of other lines"
}
openssl pkey -pubin -in "$key" -outform DER >"$tmp/der" && compgen -G "$dir/seg-000001.jsonl*" >"$tmp/err" || end 4 "?"
for f in "$dir"/seg-*.jsonl*; do case $f in *.gz) gzip -dc "$f" ;; *) cat "$f" ;; esac || end 1 "$f"; done >"$tmp/all"
cat "$dir"/seg-*.notes 2>"$tmp/err" | awk -v RS= -v d="$tmp" '{ print >(d (NR % 2 ? "/text." : "/sig.") int((NR + 1) / 2)) }'
next() { [ -e "$tmp/text.$i" ] && mapfile -t text <"$tmp/text.$i" || text=('' 0); } && next
while IFS= read -r line; do
    [[ $line == *"\"prev\":\"$prev\""* ]] || end 1 "broken chain"
    prev=$(sha <<<"$line") leaf=$({ printf '\0' && printf '%s\n' "$line"; } | sha) last=$line
    [ $n -gt 0 ] || origin=credgate/ledger/${prev:0:16}
    for ((s = n; s & 1; s >>= 1)); do leaf=$(node "${tree[-1]}" "$leaf") && unset 'tree[-1]'; done
    tree+=("$leaf") n=$((n + 1)) line=''
    while [ "${text[1]}" = "$n" ]; do note && marks=${text[*]:3} signed=$n i=$((i + 1)) && next; done
done <"$tmp/all"
[ "${text[1]:-0}" = 0 ] || end 2 "a checkpoint is of ${text[1]} lines"
[ -z "$line" ] && [ "${signed:-0}" = $n ] && [[ $last == *'"ev":"final"'* || $marks == *export* ]] || end 3 "the end is missing"
end 0 sound

#!/bin/sh
# Prints the password with which secrets.yml is encrypted. The first run makes one; keep a copy of that file elsewhere.
# Another place: GENKIDAMA_VAULT_PASSWORD_FILE. A program or password file of your own: ANSIBLE_VAULT_PASSWORD_FILE.
set -eu
file=${GENKIDAMA_VAULT_PASSWORD_FILE:-${XDG_CONFIG_HOME:-$HOME/.config}/genkidama/vault-password}
if [ ! -s "$file" ]; then
    umask 077
    mkdir -p "$(dirname "$file")"
    head -c 32 /dev/urandom | base64 | tr -d '\n' > "$file.$$"
    mv "$file.$$" "$file"
fi
cat "$file"

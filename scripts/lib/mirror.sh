# Sourced by the scripts that make trees of Debian, after setup.sh: the archive to use.
# shellcheck shell=bash
# shellcheck disable=SC2154  # scratch is that of setup.sh

# Prints the archive, of those that this machine's apt uses, that has the suite "$1" of Debian, and
# keeps its InRelease file as $scratch/$1.
find_mirror() {
    local uri
    # shellcheck disable=SC2016  # a word of apt
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | awk '!seen[$0]++' |
        while read -r uri; do
            # A list of mirrors: the first of them.
            [[ $uri != mirror+file:* ]] || uri=$(awk '{print $1; exit}' "${uri#mirror+file:}")
            uri=${uri%/}
            [[ $uri = http*://* ]] || continue
            if /usr/lib/apt/apt-helper -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
                -o Acquire::https::Timeout=20 download-file "$uri/dists/$1/InRelease" \
                "$scratch/$1" >/dev/null 2>&1 && grep -qx "Codename: $1" "$scratch/$1"; then
                printf '%s\n' "$uri"
                break
            fi
        done
}

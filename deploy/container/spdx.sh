#!/bin/sh
# Prints the contents of a Debian root as SPDX 2.3 (tag:value): each package with its version, and
# for ours the UCX inside. Runs in the image; `spdx.sh ROOT` reads another root's package database.
set -eu
root="${1:-}"
cat <<END
SPDXVersion: SPDX-2.3
DataLicense: CC0-1.0
SPDXID: SPDXRef-DOCUMENT
DocumentName: anchorkv-image
DocumentNamespace: https://example.org/spdx/anchorkv-image
Creator: Tool: anchorkv-spdx.sh
Created: $(date -u +%Y-%m-%dT%H:%M:%SZ)
END
entry() { # NAME VERSION LOCATOR
  id="$(printf %s "$1" | tr -c 'A-Za-z0-9.-' -)"
  printf '\nPackageName: %s\nSPDXID: SPDXRef-%s\nPackageVersion: %s\n' "$1" "$id" "$2"
  printf 'PackageDownloadLocation: NOASSERTION\nFilesAnalyzed: false\n'
  printf 'PackageLicenseConcluded: NOASSERTION\nPackageLicenseDeclared: NOASSERTION\n'
  printf 'PackageCopyrightText: NOASSERTION\nExternalRef: PACKAGE-MANAGER purl %s\n' "$3"
  printf 'Relationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-%s\n' "$id"
}
# shellcheck disable=SC2016  # the fields are dpkg-query's
dpkg-query --admindir="$root/var/lib/dpkg" -W \
  -f='${db:Status-Status} ${Package} ${Version} ${Architecture}\n' |
  while read -r status package version arch; do
    [ "$status" = installed ] || continue
    entry "$package" "$version" "pkg:deb/debian/$package@$version?arch=$arch"
  done
libucp="$root/usr/lib/anchorkv/lib/libucp.so.0"
if [ -e "$libucp" ]; then
  version="$(LC_ALL=C grep -aoE '1\.[0-9]+\.[0-9]+' "$libucp" | head -n 1)"
  entry ucx "$version" "pkg:github/openucx/ucx@v$version"
fi

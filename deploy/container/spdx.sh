#!/bin/sh
# Prints the contents of a Debian root as SPDX 2.3 (tag:value): each package with its version, and
# the UCX inside ours. Runs in the image; `spdx.sh ROOT` reads another root's package database.
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
packages() { # lines of NAME VERSION LOCATOR
  # shellcheck disable=SC2016  # the fields are dpkg-query's
  dpkg-query --admindir="$root/var/lib/dpkg" -W \
    -f='${db:Status-Status} ${Package} ${Version} ${Architecture}\n' |
    awk '$1 == "installed" { print $2, $3, "pkg:deb/debian/" $2 "@" $3 "?arch=" $4 }'
  libucp="$root/usr/lib/anchorkv/lib/libucp.so.0"
  if [ -e "$libucp" ]; then
    version="$(LC_ALL=C grep -aoE '1\.[0-9]+\.[0-9]+' "$libucp" | head -n 1)"
    echo "ucx $version pkg:github/openucx/ucx@v$version"
  fi
}
packages | awk '{
  id = "SPDXRef-" $1
  gsub(/[^A-Za-z0-9.-]/, "-", id)
  none = ": NOASSERTION\n"
  printf "\nPackageName: %s\nSPDXID: %s\nPackageVersion: %s\n", $1, id, $2
  printf "PackageDownloadLocation" none "FilesAnalyzed: false\nPackageLicenseConcluded" none
  printf "PackageLicenseDeclared" none "PackageCopyrightText" none
  printf "ExternalRef: PACKAGE-MANAGER purl %s\n", $3
  printf "Relationship: SPDXRef-DOCUMENT DESCRIBES %s\n", id
}'

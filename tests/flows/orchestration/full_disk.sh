# a disk that fills up while a refresh is at work
cp -r "$MADE" "$DISK/w"
refresh() { "$PYTHON" -m flows refresh-corpus --corpus tea --source "$FIRST" --source "$SECOND" --workers 1 --workspace "$DISK/w"; }
begins() { until [ -d "$DISK/w/staging/tea" ]; do sleep 0.02; done; }
( begins; dd if=/dev/zero of="$DISK/fill" bs=64k 2>/dev/null || true ) &
set +e
refresh
echo "code $?"
set -e
wait
rm "$DISK/fill"
"$PYTHON" -m flows doctor --workspace "$DISK/w" | grep -v "^note"
refresh

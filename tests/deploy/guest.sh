# What is tried inside the system that boot.py boots. Its last line tells that all of it held.
set -eux
PATH=/opt/rdzv/bin:$PATH
unit=rdzv-server
get() { systemctl show --value -p "$1" $unit; }
status() { rdzv --server "$1" --timeout 10 status; }
soon() { for _ in $(seq 100); do "$@" && return; sleep 0.1; done; exit 1; }
not() { ! "$@"; }
# Asks once: GET of a path at the HTTP port, and a connect at the main one. Nothing is tried again.
http() { /opt/rdzv/bin/python -c "import sys, urllib.request as u; \
    print(u.urlopen('http://127.0.0.1:29501' + sys.argv[1], timeout=5).read().decode())" "$1"; }
connects() { /opt/rdzv/bin/python -c "import socket; socket.create_connection(('127.0.0.1', 29500), 5)"; }

# As installed: on loopback, with its own user and no privilege. This comes after it in the boot, and it has
# told that it is ready: so everything answers at the first try.
connects
http /readyz
http /metrics | grep '^rdzv_state{state="serving"} 1.0$'
status 127.0.0.1:29500
get StatusText | grep 127.0.0.1:29500
pid=$(get MainPID)
test "$(get User)" = rdzv-server
test "$(stat -c %u /proc/$pid)" -ge 61184
grep -E '^CapBnd:\s+0+$' /proc/$pid/status
grep -E '^NoNewPrivs:\s+1$' /proc/$pid/status
grep -E '^Seccomp:\s+2$' /proc/$pid/status
if nsenter -t $pid -m touch /etc/touched; then exit 1; fi

# It has one folder to write to, for itself alone.
test "$(stat -Lc '%a %u' /var/lib/rdzv/)" = "700 $(stat -c %u /proc/$pid)"
nsenter -t $pid -m sh -c 'touch /var/lib/rdzv/touched && rm /var/lib/rdzv/touched'

# Killed: it comes back.
kill -KILL $pid
tail --pid=$pid -f /dev/null
status 127.0.0.1:29500
test "$(get NRestarts)" = 1

# Ready means ready, each time that it is started.
for _ in 1 2 3; do
    systemctl restart $unit
    connects
    http /readyz
done

# A loop that runs keeps the watchdog content; one that stands still is ended, and the server comes back.
mkdir -p /etc/systemd/system/$unit.service.d
printf '[Service]\nWatchdogSec=2\nTimeoutAbortSec=2\n' >/etc/systemd/system/$unit.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart $unit
pid=$(get MainPID)
sleep 5
test "$(get MainPID) $(get NRestarts)" = "$pid 0"
kill -STOP $pid
tail --pid=$pid -f /dev/null
soon journalctl -u $unit --grep 'Watchdog timeout'
status 127.0.0.1:29500
http /readyz
test "$(get NRestarts)" = 1
rm /etc/systemd/system/$unit.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart $unit

# Stopped: in order.
systemctl stop $unit
test "$(get Result) $(get ExecMainStatus)" = 'success 0'

# Told to listen everywhere: refused until it is told that this is meant.
mkdir -p /etc/rdzv
printf 'RDZV_HOST=0.0.0.0\nRDZV_PORT=29600\n' >/etc/rdzv/rdzv.env
if systemctl start $unit; then exit 1; fi
timeout 20 sh -c 'until journalctl -u rdzv-server | grep "refusing to listen"; do sleep 0.1; done'
echo RDZV_INSECURE_NO_AUTH=1 >>/etc/rdzv/rdzv.env
systemctl restart $unit
status 127.0.0.1:29600

# With a token, as deploy/README.md says: its group may read it, so the service can.
groupadd --system --force rdzv
install -d -m 750 -g rdzv /etc/rdzv
rdzv token new | install -m 640 -g rdzv /dev/stdin /etc/rdzv/token
install -D -m 644 /token.conf /etc/systemd/system/$unit.service.d/token.conf
systemctl daemon-reload
echo RDZV_HOST=0.0.0.0 >/etc/rdzv/rdzv.env
systemctl restart $unit
by() { RDZV_TOKEN_FILE=$1 status 127.0.0.1:29500; }
by /etc/rdzv/token
if status 127.0.0.1:29500; then exit 1; fi
pid=$(get MainPID)
grep -E "^Groups:.*\b$(getent group rdzv | cut -d: -f3)\b" /proc/$pid/status

# Exchanged in two steps, without a restart.
install -m 600 /etc/rdzv/token /old
(umask 077 && rdzv token new >/new)
cat /new >>/etc/rdzv/token
systemctl reload $unit
soon by /new
by /old
cat /new >/etc/rdzv/token
systemctl reload $unit
soon not by /old
by /new
test "$(get MainPID)" = $pid

# Readable for everybody: refused.
chmod 644 /etc/rdzv/token
if systemctl restart $unit; then exit 1; fi
timeout 20 sh -c 'until journalctl -u rdzv-server | grep "mode 0644"; do sleep 0.1; done'
chmod 640 /etc/rdzv/token

# As a credential of systemd.
printf '[Service]\nLoadCredential=token:/etc/rdzv/token\nEnvironment=RDZV_TOKEN_FILE=%%d/token\n' \
    >/etc/systemd/system/$unit.service.d/token.conf
systemctl daemon-reload
systemctl restart $unit
by /new
rm -r /etc/systemd/system/$unit.service.d /etc/rdzv/token
systemctl daemon-reload

# Both loops run under the filters, and names are looked up.
for loop in asyncio uvloop; do
    printf 'RDZV_HOST=localhost\nRDZV_LOOP=%s\n' $loop >/etc/rdzv/rdzv.env
    systemctl restart $unit
    status localhost:29500
done
systemctl stop $unit
test "$(get Result)" = success
systemd-analyze security $unit | tail -n 1
echo GOOD

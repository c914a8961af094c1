#!/usr/bin/env python3
"""The aligned model of lockstep/probe/aligned_model.cc once more, in numpy: each line is one rounding per element, in the same order of
additions, with gradients written from the formulas. Where both give the same bits, both are right or wrong alike.

usage: aligned_reference.py      prints the checksums of all shapes: 0xCRC  bfloat16 tp pp dp  loss
"""
import numpy as np

TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    TABLE = np.where(TABLE & 1, TABLE >> 1 ^ np.uint32(0x82F63B78), TABLE >> 1)
TABLE = TABLE.tolist()


def crc(data, start=0):
    value = start ^ 0xFFFFFFFF
    for byte in data:
        value = TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF


F=np.float32
def fixed(name,count,scale):
    seed=np.uint64(crc(name.encode())); i=np.arange(1,count+1,dtype=np.uint64)
    with np.errstate(over='ignore'):
        w=seed+i*np.uint64(0x9e3779b97f4a7c15)
        w=(w^(w>>np.uint64(30)))*np.uint64(0xbf58476d1ce4e5b9)
        w=(w^(w>>np.uint64(27)))*np.uint64(0x94d049bb133111eb)
        w=w^(w>>np.uint64(31))
    n=(w>>np.uint64(40)).astype(np.int64)-(1<<23)
    return (n.astype(F)*F(2.0**-23))*F(scale)
def exp(x):
    x=np.asarray(x,F); small=x<F(-87); x=np.minimum(x,F(88)); x=np.where(small,F(0),x)
    s=x*F(1.44269504); n=np.trunc(np.where(s<0,s-F(.5),s+F(.5))).astype(np.int32); w=n.astype(F)
    r=(x-w*F(0.693359375))-w*F(-2.12194440e-4)
    t=np.full_like(x,F(1)/F(5040))
    for c in (F(1)/F(720),F(1)/F(120),F(1)/F(24),F(1)/F(6),F(.5),F(1),F(1)): t=t*r+c
    t=t*((n+127).astype(np.uint32)<<np.uint32(23)).view(F)
    return np.where(small,F(0),t).astype(F)
def sig(x): return F(1)/(F(1)+exp(-x))
def P(a,b):
    o=np.zeros((a.shape[0],b.shape[1]),F)
    for k in range(a.shape[1]): o=o+a[:,k:k+1]*b[k]
    return o
def seqsum(a):           # along the last axis, ascending, from zero
    s=np.zeros(a.shape[:-1],F)
    for c in range(a.shape[-1]): s=s+a[...,c]
    return s
class N: pass
class Tape:
    def __init__(s,bf): s.bf=bf; s.n=[]
    def rnd(s,a):
        if not s.bf: return a
        b=np.ascontiguousarray(a).view(np.uint32)
        return ((b+np.uint32(0x7fff)+(b>>np.uint32(16)&np.uint32(1)))&np.uint32(0xffff0000)).view(F)
    def add(s,v,back=None):
        n=N(); assert v.dtype==F; n.v=s.rnd(v); n.g=np.zeros_like(n.v); n.back=back; s.n.append(n); return n
    def mul(s,x,w):
        def back(g): x.g=x.g+P(g,w.v.T.copy()); w.g=w.g+P(x.v.T.copy(),g)
        return s.add(P(x.v,w.v),back)
    def sum(s,ps):
        t=ps[0].v
        for p in ps[1:]: t=t+p.v
        def back(g):
            for p in ps: p.g=p.g+g
        return s.add(t,back)
    def norm(s,x,gain):
        def inv(): return F(1)/np.sqrt(seqsum(x.v*x.v)/F(x.v.shape[1])+F(1e-5))
        i=inv()[:,None]; ga=gain.v[0]
        def back(g):
            al=seqsum((ga*g)*x.v)[:,None]
            al=al*(((i*i)*i)/F(x.v.shape[1]))
            x.g=x.g+((i*ga)*g-x.v*al)
            t=(g*x.v)*i; acc=gain.g[0]
            for r in range(g.shape[0]): acc=acc+t[r]
            gain.g=acc[None,:]
        return s.add((x.v*i)*ga,back)
    def attend(s,q,k,v,heads):
        T,H=q.v.shape; w=H//heads; sc=F(1)/np.sqrt(F(w)); ps=[]; out=np.zeros((T,H),F)
        for h in range(heads):
            c=slice(h*w,h*w+w); Q,K,V=q.v[:,c],k.v[:,c],v.v[:,c]
            d=seqsum(Q[:,None,:]*K[None,:,:])*sc; p=np.zeros((T,T),F)
            for i in range(T):
                e=exp(d[i,:i+1]-d[i,:i+1].max()); p[i,:i+1]=e/seqsum(e)
            o=np.zeros((T,w),F)
            for j in range(T): o[j:]=o[j:]+p[j:,j:j+1]*V[j]
            out[:,c]=o; ps.append(p)
        def back(g):
            for h in range(heads):
                c=slice(h*w,h*w+w); p=ps[h]; Q,K,V,G=q.v[:,c],k.v[:,c],v.v[:,c],g[:,c]
                dp=seqsum(G[:,None,:]*V[None,:,:]); gq,gk,gv=q.g[:,c].copy(),k.g[:,c].copy(),v.g[:,c].copy()
                for i in range(T):
                    n=i+1
                    gv[:n]=gv[:n]+p[i,:n,None]*G[i]
                    we=seqsum(dp[i,:n]*p[i,:n])
                    ds=(p[i,:n]*(dp[i,:n]-we))*sc
                    for j in range(n): gq[i]=gq[i]+ds[j]*K[j]
                    gk[:n]=gk[:n]+ds[:,None]*Q[i]
                q.g[:,c],k.g[:,c],v.g[:,c]=gq,gk,gv
        return s.add(out,back)
    def silu(s,x):
        def back(g): z=sig(x.v); x.g=x.g+g*(z*(F(1)+x.v*(F(1)-z)))
        return s.add(x.v*sig(x.v),back)
    def pick(s,t,rows):
        def back(g):
            for i,r in enumerate(rows): t.g[r]=t.g[r]+g[i]
        return s.add(t.v[rows].copy(),back)
    def ce(s,sh,tg):
        T=sh[0].v.shape[0]; w=sh[0].v.shape[1]; loss=0
        most=np.max([x.v.max(1) for x in sh],0); tot=np.zeros(T,F)
        es=[exp(x.v-most[:,None]) for x in sh]
        for e in es: tot=tot+seqsum(e)
        for x,e in zip(sh,es): x.g=e/(tot*F(T))[:,None]
        for i,t in enumerate(tg):
            x=sh[t//w]; loss+=(np.log(float(tot[i]))-float(x.v[i,t%w]-most[i]))/T
            x.g[i,t%w]=x.g[i,t%w]-F(1)/F(T)
        return loss
    def back(s):
        for n in reversed(s.n):
            if n.back: n.g=s.rnd(n.g); n.back(n.g)
def run(tp,pp,dp,bf):
    ps=[]
    def part(name,seed,r,c,split=None,rank=0,ranks=1,gain=False):
        sc=F(.1) if split is None and r==1 else F(1)/np.sqrt(F(r))
        m=fixed(seed,r*c,sc).reshape(r,c)
        if split=='c': m=m[:,rank*(c//ranks):(rank+1)*(c//ranks)]
        if split=='r': m=m[rank*(r//ranks):(rank+1)*(r//ranks)]
        m=m.copy()
        if gain: m=m+F(1)
        ps.append([name,m,np.zeros_like(m)]); return len(ps)-1
    emb=part("stage 0 embedding","embedding",128,64); layers=[]
    for l in range(2):
        seed=f"layer {l} "; place=f"stage {l*pp//2} {seed}"
        g1=part(place+"attention gain",seed+"attention gain",1,64,gain=True); g2=part(place+"mlp gain",seed+"mlp gain",1,64,gain=True); sh=[]
        for r in range(tp):
            sh.append([part(f"{place}tp {r} {n}",seed+n,a,b,s,r,tp) for n,a,b,s in (("q",64,64,'c'),("k",64,64,'c'),("v",64,64,'c'),("out",64,64,'r'),("up",64,256,'c'),("down",256,64,'r'))])
        layers.append((g1,g2,sh))
    fg=part(f"stage {pp-1} final","final gain",1,64,gain=True)
    hd=[part(f"stage {pp-1} tp {r} head","head",64,128,'c',r,tp) for r in range(tp)]
    loss=0
    for d in range(dp):
        t=Tape(bf); n=[t.add(p[1]) for p in ps]
        words=[int(np.floor(v))+64 for v in fixed(f"words {d}",33,64.0)]
        x=t.pick(n[emb],words[:-1])
        for g1,g2,sh in layers:
            y=t.norm(x,n[g1]); parts=[]
            for q,k,v,o,u,dn in sh:
                Q,K=t.mul(y,n[q]),t.mul(y,n[k]); V=t.mul(y,n[v]); parts.append(t.mul(t.attend(Q,K,V,4//tp),n[o]))
            x=t.sum([x,t.sum(parts)]); y=t.norm(x,n[g2])
            parts=[t.mul(t.silu(t.mul(y,n[u])),n[dn]) for q,k,v,o,u,dn in sh]
            x=t.sum([x,t.sum(parts)])
        x=t.norm(x,n[fg]); loss+=t.ce([t.mul(x,n[h]) for h in hd],words[1:])/dp
        t.back()
        for p,m in zip(ps,n): p[2]=p[2]+m.g
    total=0
    for name,w,g in ps:
        g=g/F(dp); f=fixed(name+" first",w.size,1e-3).reshape(w.shape); s2=fixed(name+" second",w.size,1e-3).reshape(w.shape)
        f=F(.9)*f+(F(1)-F(.9))*g; s2=F(.95)*(s2*s2)+(F(1)-F(.95))*(g*g)
        w=w-(F(1e-2)*f)/(np.sqrt(s2)+F(1e-8))
        c=0
        for a in (g,f,s2,w): assert a.dtype==F; c=crc(np.ascontiguousarray(a).tobytes(),c)
        total=crc(name.encode(),total); total=crc(c.to_bytes(4,'little'),total)
    return total,loss


if __name__ == "__main__":
    for bf in (0, 1):
        for tp, pp, dp in np.ndindex(2, 2, 2):
            found, mean = run(tp + 1, pp + 1, dp + 1, bf)
            print(f"{found:#010x}  {bf} {tp + 1} {pp + 1} {dp + 1}  {mean:.6f}")
